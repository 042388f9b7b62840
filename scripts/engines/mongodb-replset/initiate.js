// Makes the mongod processes on these ports of 127.0.0.1 the replica set rs0, unless their kept data says that they are
// one already. Waits until the set accepts majority writes, and then writes its address into READY-FILE. With
// MONGOD_KEY, the key that a set with access control has for its members, it creates the superuser "leasehold" with
// this password.
// Usage: [MONGOD_KEY=KEY] node initiate.js READY-FILE PORT...
'use strict';

const fs = require('node:fs');
const { MongoClient } = require('mongodb');
const { setTimeout: sleep } = require('node:timers/promises');

const NOT_YET_INITIALIZED = 94;

const key = process.env.MONGOD_KEY;
// A client that knows the key may do everything, even before there are users.
const member = { auth: { username: '__system', password: key }, authSource: 'local' };
const options = { serverSelectionTimeoutMS: 1000, heartbeatFrequencyMS: 500, ...(key && member) };

async function main([ready, ...ports]) {
  const hosts = ports.map((port) => `127.0.0.1:${port}`);
  const members = hosts.map((host, _id) => ({ _id, host }));

  // A set cannot be made of members that are still starting.
  for (const host of hosts.slice(1)) {
    await (await connect(`mongodb://${host}/?directConnection=true`)).close();
  }
  const first = await connect(`mongodb://${hosts[0]}/?directConnection=true`);
  const admin = first.db('admin');
  try {
    const { config } = await admin.command({ replSetGetConfig: 1 });
    // With kept data on another port, the set would not find itself in its own configuration.
    if (config.members.map(({ host }) => host).join() !== hosts.join()) {
      const changed = { ...config, version: config.version + 1, members };
      await admin.command({ replSetReconfig: changed, force: true });
    }
  } catch (error) {
    if (error.code !== NOT_YET_INITIALIZED) throw error;
    // The times are short, for the tests that wait for the set to notice a lost member.
    const settings = { electionTimeoutMillis: 2000, heartbeatIntervalMillis: 500 };
    await admin.command({ replSetInitiate: { _id: 'rs0', members, settings } });
  }
  await first.close();

  let uri = `mongodb://${hosts.join()}/?replicaSet=rs0`;
  const set = await connect(uri);
  // This majority write leaves no collection behind.
  await set.db('admin').command({
    appendOplogNote: 1,
    data: { started: true },
    writeConcern: { w: 'majority' },
  });
  if (key) {
    const { users } = await set.db('admin').command({ usersInfo: 'leasehold' });
    if (users.length === 0) {
      await set.db('admin').command({ createUser: 'leasehold', pwd: key, roles: ['root'] });
    }
    uri = `${uri.replace('//', `//leasehold:${key}@`)}&authSource=admin`;
  }
  await set.close();

  // The file is renamed when it is complete, so that nobody reads an incomplete file.
  fs.writeFileSync(`${ready}.part`, uri);
  fs.renameSync(`${ready}.part`, ready);
}

// There is no time limit: the caller ends this program when it takes too long.
async function connect(uri) {
  for (;;) {
    const client = new MongoClient(uri, options);
    try {
      await client.db('admin').command({ ping: 1 });
      return client;
    } catch {
      await client.close();
      await sleep(100);
    }
  }
}

main(process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
