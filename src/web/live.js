/*
 * The live data of /v1/live: connects, connects again, keeps the last of everything, and knows when
 * it is old. Views listen: on("hello" | "models" | "state" | "steps" | "link", fn).
 */
import {ApiError, askKey, readEvents, send} from "./api.js";

const STALE_MS = 4000; /* a state comes every second */
const MAX_STEPS = 600;
const REMEMBER_MS = 5 * 60_000;
const HIDDEN_MS = 60_000; /* a page that nobody sees for so long lets go */

const events = new EventTarget();
export const on = (what, fn) => events.addEventListener(what, (e) => fn(e.detail));
const tell = (what, detail) => events.dispatchEvent(new CustomEvent(what, {detail}));

export const live = {
  link: "connecting", /* connecting, live, stale, lost, denied, starting */
  hello: null,
  state: null,
  stateAt: 0,
  steps: [], /* newest last */
  lost: 0,
  waits: new Map(), /* request and index -> {at, record}: first words of the last minutes */
};

/* Of each class, how many requests were judged and missed their targets, a look every ten seconds:
 * what counts for a light is the last minutes, not last week. */
const LOOK_MS = 10_000, LOOKS = 60;
const looks = [];

function look(classes) {
  if (looks.length > 0 && Date.now() - looks.at(-1).at < LOOK_MS) return;
  looks.push({at: Date.now(), of: Object.fromEntries(classes.map((c) => [c.name, c]))});
  if (looks.length > LOOKS) looks.shift();
}

/* Share of a class's requests of the last ten minutes that met their targets; where none ended since
 * this page was opened, what its first words say. null: nothing to say. */
export function attained(c) {
  const before = looks[0]?.of[c.name];
  const judged = (c.judged ?? 0) - (before?.judged ?? 0);
  if (before && judged > 0) return 1 - (c.missed - before.missed) / judged;
  const target = classInfo(c.name)?.ttft_ms;
  if (!(c.ttft_ms?.n > 0)) return null;
  return target > 0 && c.ttft_ms.p95 > target ? 0.9 : 1;
}

function setLink(link) {
  if (live.link === link) return;
  live.link = link;
  tell("link", link);
}

function remember(records) {
  const now = Date.now();
  for (const r of records)
    if (r.ttft_ms !== undefined || r.queued_ms > 0)
      live.waits.set(`${r.id}/${r.index}`, {at: now, record: r});
  for (const [k, v] of live.waits)
    if (now - v.at > REMEMBER_MS) live.waits.delete(k);
}

const handlers = {
  hello(data) {
    live.hello = data;
    live.steps = [];
    looks.length = 0; /* another server, maybe: its counts begin anew */
    tell("hello", data);
  },
  models(data) { /* one was loaded, or has gone */
    if (live.hello) live.hello.models = data.models;
    tell("models", data.models);
  },
  steps(data) {
    live.lost += data.lost ?? 0;
    live.steps.push(...data.steps);
    live.steps.splice(0, Math.max(0, live.steps.length - MAX_STEPS));
    tell("steps", data.steps);
  },
  state(data) {
    live.state = data;
    live.stateAt = Date.now();
    look(data.classes ?? []);
    remember([...(data.running ?? []), ...(data.waiting ?? [])]);
    setLink("live");
    tell("state", data);
  },
};

let abort = null;

async function once() {
  abort = new AbortController();
  const response = await send("GET", "/v1/live", {signal: abort.signal});
  await readEvents(response, (name, text) => handlers[name]?.(JSON.parse(text)));
}

/* What a failure means; the time until the next try, or null for none. */
async function afterFailure(error, tries) {
  if (error instanceof ApiError && error.status === 401) {
    setLink("denied"); /* the dialog was closed without a key */
    return null;
  }
  if (error instanceof ApiError && error.status === 403) {
    setLink("denied");
    return await askKey({admin: true}) ? 0 : null;
  }
  setLink(error instanceof ApiError && error.status === 503 ? "starting" : "lost");
  return Math.min(10_000, 500 * 2 ** tries) * (0.75 + Math.random() / 2);
}

const pause = (ms) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  addEventListener("online", () => { clearTimeout(timer); resolve(); }, {once: true});
});

const seen = () => new Promise((resolve) => {
  if (!document.hidden) resolve();
  else document.addEventListener("visibilitychange", () => resolve(), {once: true});
});

let running = false;

/* Runs until a key is refused; may be called again then, or with `anew` after another key came. */
export async function connect(anew) {
  if (anew) abort?.abort();
  if (running) return;
  running = true;
  for (let tries = 0; ; tries++) {
    await seen();
    let error = null;
    const began = Date.now();
    try {
      await once();
    } catch (e) {
      error = e;
    }
    if (Date.now() - began > 5000) tries = 0;
    const wait = await afterFailure(error, tries);
    if (wait === null) break;
    await pause(wait);
  }
  running = false;
}

let hiddenTimer = null;
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) hiddenTimer = setTimeout(() => abort?.abort(), HIDDEN_MS);
});

setInterval(() => {
  if (live.link === "live" && Date.now() - live.stateAt > STALE_MS) setLink("stale");
  if (live.link === "stale") tell("link", "stale"); /* the time goes on */
}, 1000);

/* ---- What several views ask of it ---- */

export const kvPools = (state) => state?.kv ?? [];

/* Whose work it is, where there is more than one model. */
export const modelOf = (r) => (live.hello?.models?.length > 1 && r.model ? r.model : "");

export const classInfo = (name) => live.hello?.classes?.find((c) => c.name === name);
