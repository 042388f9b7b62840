// Makes a sharded cluster of a config server, a shard and routers on these ports of 127.0.0.1, unless their kept data
// says that they are one already. Waits until each router accepts majority writes, and then writes the address of the
// cluster into READY-FILE.
// Usage: node initiate.js READY-FILE CONFIG-PORT SHARD-PORT ROUTER-PORT...
'use strict';

const fs = require('node:fs');
const { MongoClient } = require('mongodb');
const { setTimeout: sleep } = require('node:timers/promises');

const ALREADY_INITIALIZED = 23;

const options = { serverSelectionTimeoutMS: 1000, heartbeatFrequencyMS: 500 };

async function main([ready, config, shard, ...routers]) {
  await Promise.all([initiate('config', config, { configsvr: true }), initiate('shard', shard, {})]);
  for (const router of routers) {
    const client = await connect(router);
    if (router === routers[0]) {
      await until(() => client.db('admin').command({ addShard: `shard/127.0.0.1:${shard}` }));
    }
    const probe = client.db('leasehold_probe').collection('probe');
    await until(() => probe.insertOne({ router }, { writeConcern: { w: 'majority' } }));
    await client.db('leasehold_probe').dropDatabase();
    await client.close();
  }
  const hosts = routers.map((port) => `127.0.0.1:${port}`);
  // The file is renamed when it is complete, so that nobody reads an incomplete file.
  fs.writeFileSync(`${ready}.part`, `mongodb://${hosts.join()}/`);
  fs.renameSync(`${ready}.part`, ready);
}

async function initiate(name, port, more) {
  const client = await connect(port);
  const members = [{ _id: 0, host: `127.0.0.1:${port}` }];
  const settings = { electionTimeoutMillis: 2000, heartbeatIntervalMillis: 500 };
  try {
    await client.db('admin').command({ replSetInitiate: { _id: name, members, settings, ...more } });
  } catch (error) {
    if (error.code !== ALREADY_INITIALIZED) throw error;
  }
  await client.close();
}

// There is no time limit: the caller ends this program when it takes too long.
async function connect(port) {
  for (;;) {
    const client = new MongoClient(`mongodb://127.0.0.1:${port}/?directConnection=true`, options);
    try {
      await client.db('admin').command({ ping: 1 });
      return client;
    } catch {
      await client.close();
      await sleep(100);
    }
  }
}

// A router refuses commands until it knows its config server and its shard.
async function until(attempt) {
  for (;;) {
    try {
      return await attempt();
    } catch {
      await sleep(100);
    }
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
