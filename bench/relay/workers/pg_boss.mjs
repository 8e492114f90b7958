// pg-boss, as its documentation advises.
import { PgBoss } from "pg-boss";
import { Agent, request } from "undici";

const { DATABASE_URL, DESTINATION_URL, CONCURRENCY } = process.env;
const concurrency = Number(CONCURRENCY);
const [command, first, second] = process.argv.slice(2);
const payload = (number) => ({ key: `key-${number}`, number, amount: 1250, note: "x".repeat(200) });
const QUEUE = "calls";

const boss = new PgBoss({ connectionString: DATABASE_URL, useListenNotify: true });
boss.on("error", console.error);
await boss.start();

async function enqueue(start, count) {
  for (let from = start; from < start + count; from += 1000) {
    const jobs = [];
    for (let n = from; n < Math.min(from + 1000, start + count); n++) jobs.push({ data: payload(n) });
    await boss.insert(QUEUE, jobs);
  }
}

async function work() {
  const dispatcher = new Agent({ connections: concurrency });
  const call = async ({ key, ...body }) => {
    const answer = await request(`${DESTINATION_URL}/v1/calls`, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": key },
      body: JSON.stringify(body),
      dispatcher,
    });
    await answer.body.dump();
    if (answer.statusCode !== 200) throw new Error(`answered ${answer.statusCode}`);
  };
  const options = { batchSize: concurrency, burstWhenBatchFull: true };
  await boss.work(QUEUE, options, (jobs) => Promise.all(jobs.map((job) => call(job.data))));
  await new Promise((done) => process.once("SIGTERM", done));
}

async function trickle(count) {
  for (let n = 0; n < count; n++) {
    await new Promise((done) => setTimeout(done, 50 + (n % 7) * 10));
    await boss.send(QUEUE, payload(n));
    console.log(JSON.stringify({ key: `key-${n}`, committed: Date.now() / 1000 }));
  }
}

if (command === "setup") await boss.createQueue(QUEUE, { retryLimit: 12, retryBackoff: true, notify: true });
else if (command === "enqueue") await enqueue(Number(first), Number(second));
else if (command === "work") await work();
else if (command === "trickle") await trickle(Number(first));
await boss.stop({ graceful: false });
process.exit(0);
