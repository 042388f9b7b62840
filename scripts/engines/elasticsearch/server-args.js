// Prints what a node of Elasticsearch 8.12 reads from its standard input at its start: the arguments that its launcher,
// which is not used here, would send to it (the class ServerArgs).
//
//   node server-args.js CONFIG-FOLDER LOGS-FOLDER [NAME=VALUE...]
//
// The environment variable KEYSTORE contains the settings of the keystore, as lines NAME=VALUE.
'use strict';

const { createHash } = require('crypto');

const [config, logs, ...settings] = process.argv.slice(2);
const keystore = (process.env.KEYSTORE || '').split('\n').filter(Boolean);
const bytes = [];

const boolean = (value) => bytes.push(value ? 1 : 0);

function vint(value) {
  while (value > 0x7f) {
    bytes.push((value & 0x7f) | 0x80);
    value >>>= 7;
  }
  bytes.push(value);
}

function array(value) {
  vint(value.length);
  bytes.push(...value);
}

// Writes UTF-16 units, each as one to three bytes.
function string(value) {
  vint(value.length);
  for (let i = 0; i < value.length; i++) {
    const unit = value.charCodeAt(i);
    if (unit <= 0x7f) bytes.push(unit);
    else if (unit <= 0x7ff) bytes.push(0xc0 | (unit >> 6), 0x80 | (unit & 0x3f));
    else bytes.push(0xe0 | (unit >> 12), 0x80 | ((unit >> 6) & 0x3f), 0x80 | (unit & 0x3f));
  }
}

function map(lines, value) {
  vint(lines.length);
  for (const line of lines) {
    const equals = line.indexOf('=');
    string(line.slice(0, equals));
    value(line.slice(equals + 1));
  }
}

boolean(false); // not a daemon
boolean(false); // not quiet
boolean(false); // no file for the process id

string('org.elasticsearch.common.settings.KeyStoreWrapper');
bytes.push(0, 0, 0, 6); // the version of the keystore's format
boolean(false); // no password
boolean(false); // no encrypted content
map(keystore, (value) => {
  const content = Buffer.from(value);
  array(content);
  array(createHash('sha256').update(content).digest());
});
boolean(false); // not closed

map(settings, (value) => {
  bytes.push(0); // a string
  string(value);
});
string(config);
string(logs);

process.stdout.write(Buffer.from(bytes));
