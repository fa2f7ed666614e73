/* One sentence for a parent: is everybody answered in time, and if not, who waits and why. */
import {className, t, time} from "./base.js";
import {attained, classInfo, live} from "./live.js";

const GOOD = 0.95, FAIR = 0.8;
const WORTH_SAYING_MS = 200;

export const who = (r) => r.person || t("somebody");

/* The part of a wait that took longest: {cause, ms}. What is not in the queue is its own prompt. */
export function largestCause(r) {
  let best = {cause: "none", ms: 0};
  for (const [cause, ms] of Object.entries(r.wait_ms ?? {}))
    if (cause !== "none" && ms > best.ms) best = {cause, ms};
  const reading = (r.ttft_ms ?? r.total_ms ?? 0) - (r.queued_ms ?? 0);
  if (reading > best.ms && (r.prompt_tokens ?? 0) > 0) best = {cause: "own", ms: reading};
  return best;
}

/* How a class does: ok, warn, bad, idle, or free for work without a target. */
export function light(c, waiting) {
  if (waiting.some((r) => r.class === c.name && isLate(r))) return "bad";
  if (c.name === "background") return c.running + c.waiting > 0 ? "free" : "idle";
  const n = c.ttft_ms?.n ?? 0;
  if (n === 0 && c.running + c.waiting === 0) return "idle";
  const met = attained(c) ?? 1;
  return met >= GOOD ? "ok" : met >= FAIR ? "warn" : "bad";
}

function isLate(r) {
  const target = classInfo(r.class)?.ttft_ms;
  return target > 0 && r.ttft_ms === undefined && (r.total_ms ?? 0) > target;
}

/* The worst first word of the last minutes, if anybody could have felt it. */
function worstWait() {
  let worst = null;
  for (const {record} of live.waits.values()) {
    if (record.class === "background" || record.ttft_ms === undefined) continue;
    if (!worst || record.ttft_ms > worst.ttft_ms) worst = record;
  }
  return worst && worst.ttft_ms >= WORTH_SAYING_MS ? worst : null;
}

function more(state) {
  const parts = [];
  const worst = worstWait();
  if (worst)
    parts.push(t("say.waited", {who: who(worst), class: className(worst.class),
      time: time(worst.ttft_ms), reason: t(`why.${largestCause(worst).cause}`)}));
  const background = state.classes?.find((c) => c.name === "background");
  if (state.background?.paused) parts.push(t("say.paused"));
  else if (background?.running > 0) parts.push(t("say.background"));
  return parts.join(" ");
}

/* {level, main, more} */
export function headline() {
  const {state, link} = live;
  if (!state) return {level: "idle", main: t(link === "lost" ? "say.lost" : "say.connecting"), more: ""};
  const waiting = state.waiting ?? [];
  const late = waiting.filter((r) => r.class !== "background" && isLate(r))
    .sort((a, b) => b.total_ms - a.total_ms)[0];
  if (late)
    return {level: "bad",
      main: t("say.bad", {who: who(late), class: className(late.class), time: time(late.total_ms)}),
      more: t("say.because", {reason: t(`why.${late.waiting_for ?? "none"}`)})};
  const lights = (state.classes ?? []).map((c) => ({c, level: light(c, waiting)}));
  for (const level of ["bad", "warn"]) {
    const worst = lights.filter((x) => x.level === level)
      .sort((a, b) => attained(a.c) - attained(b.c))[0];
    if (!worst) continue;
    const target = classInfo(worst.c.name)?.ttft_ms;
    const p95 = target > 0 ? `${t("say.p95", {time: time(worst.c.ttft_ms?.p95), target: time(target)})} ` : "";
    return {level, main: t(level === "bad" ? "say.late" : "say.warn", {class: className(worst.c.name)}),
      more: p95 + more(state)};
  }
  const people = (state.running ?? []).some((r) => r.class !== "background");
  const busy = people || waiting.length > 0;
  if (!busy && lights.every((x) => ["idle", "free"].includes(x.level)))
    return {level: "idle", main: t("say.idle"), more: more(state)};
  return {level: "ok", main: t(worstWait()?.ttft_ms > 1000 ? "say.soon" : "say.ok"), more: more(state)};
}
