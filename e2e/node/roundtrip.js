// Produces n records with kafkajs, consumes them as a group, and prints what came
// back as one JSON line: {"n": ..., "records": ["partition/offset/key/value", ...]}.
// Usage: node roundtrip.js <bootstrap> <topic> <group> <n>
const { Kafka, logLevel } = require('kafkajs');

async function main([bootstrap, topic, group, n]) {
  const kafka = new Kafka({ clientId: 'e2e', brokers: bootstrap.split(','), logLevel: logLevel.WARN });
  const producer = kafka.producer();
  await producer.connect();
  const messages = [];
  for (let i = 0; i < Number(n); i++) {
    messages.push({ key: 'k' + i, value: 'v' + i, partition: i % 2 });
  }
  await producer.send({ topic, messages });
  await producer.disconnect();

  const consumer = kafka.consumer({ groupId: group });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const seen = [];
  await new Promise((resolve, reject) => {
    setTimeout(() => reject(new Error(`only ${seen.length} of ${n} records came`)), 60000).unref();
    consumer.run({
      eachMessage: async ({ partition, message }) => {
        seen.push(`${partition}/${message.offset}/${message.key}/${message.value}`);
        if (seen.length === Number(n)) resolve();
      },
    }).catch(reject);
  });
  await consumer.disconnect();
  seen.sort();
  console.log(JSON.stringify({ n: seen.length, records: seen }));
}

main(process.argv.slice(2)).catch((e) => {
  console.error(e);
  process.exit(1);
});
