// Waits until a node of Elasticsearch or OpenSearch accepts writes, and says so in a file.
//
//   node search-ready.js FILE ADDRESS
'use strict';

const fs = require('fs');
const http = require('http');

const [file, address] = process.argv.slice(2);
const { hostname, port, username, password } = new URL(address);

function ask(method, path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({
      hostname,
      port,
      method,
      path,
      auth: username ? `${username}:${password}` : undefined,
      headers: body ? { 'content-type': 'application/json' } : {},
      agent: false,
      timeout: 10000,
    }, (response) => {
      let text = '';
      response.setEncoding('utf8');
      response.on('data', (part) => { text += part; });
      response.on('error', reject);
      response.on('end', () => resolve({ status: response.statusCode, text }));
    });
    request.on('timeout', () => request.destroy(new Error('no answer in 10 s')));
    request.on('error', reject);
    request.end(body && JSON.stringify(body));
  });
}

// An answer of the health API does not show that an index can be created already.
async function check() {
  const index = `/leasehold-ready-${process.pid}`;
  const settings = { number_of_shards: 1, number_of_replicas: 0 };
  for (const [method, path, body] of [
    ['GET', '/_cluster/health?wait_for_status=yellow&timeout=5s'],
    ['PUT', `${index}`, { settings }],
    ['PUT', `${index}/_doc/1?refresh=true`, { ready: true }],
    ['DELETE', `${index}`],
  ]) {
    const { status, text } = await ask(method, path, body);
    // An argument switched security on. The node does answer, and the caller that added this argument must know a user.
    if (status === 401 && !username) return;
    // An earlier attempt may have created the index already.
    if (status >= 300 && !text.includes('resource_already_exists_exception')) {
      throw new Error(`${method} ${path}: ${status} ${text}`);
    }
  }
}

(async () => {
  for (let last; ;) {
    try {
      await check();
      break;
    } catch (error) {
      // This goes into the engine's log, which is shown if the time limit for the start is exceeded.
      if (error.message !== last) console.error(`not ready yet: ${error.message}`);
      last = error.message;
      await new Promise((resolve) => { setTimeout(resolve, 50); });
    }
  }
  fs.writeFileSync(`${file}.new`, 'ready\n');
  fs.renameSync(`${file}.new`, file);
})();
