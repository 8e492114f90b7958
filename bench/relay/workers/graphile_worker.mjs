// graphile-worker, as its documentation advises; `tuned` adds what its page on performance names.
import { makeWorkerUtils, run } from "graphile-worker";
import { Agent, request } from "undici";

const { DATABASE_URL, DESTINATION_URL, CONCURRENCY, VARIANT } = process.env;
const concurrency = Number(CONCURRENCY);
const [command, first, second] = process.argv.slice(2);
const payload = (number) => ({ key: `key-${number}`, number, amount: 1250, note: "x".repeat(200) });

async function withUtils(work) {
  const utils = await makeWorkerUtils({ connectionString: DATABASE_URL });
  try {
    await work(utils);
  } finally {
    await utils.release();
  }
}

async function enqueue(start, count) {
  await withUtils(async (utils) => {
    for (let from = start; from < start + count; from += 1000) {
      const jobs = [];
      for (let n = from; n < Math.min(from + 1000, start + count); n++) {
        jobs.push({ identifier: "call", payload: payload(n) });
      }
      await utils.addJobs(jobs);
    }
  });
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
  const tuned = {
    preset: {
      worker: {
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
  };
  const runner = await run({
    connectionString: DATABASE_URL,
    concurrency,
    maxPoolSize: concurrency + 2,
    taskList: { call },
    ...(VARIANT === "tuned" ? tuned : {}),
  });
  await runner.promise;
}

async function trickle(count) {
  await withUtils(async (utils) => {
    for (let n = 0; n < count; n++) {
      await new Promise((done) => setTimeout(done, 50 + (n % 7) * 10));
      await utils.addJob("call", payload(n));
      console.log(JSON.stringify({ key: `key-${n}`, committed: Date.now() / 1000 }));
    }
  });
}

if (command === "setup") await withUtils((utils) => utils.migrate());
else if (command === "enqueue") await enqueue(Number(first), Number(second));
else if (command === "work") await work();
else if (command === "trickle") await trickle(Number(first));
