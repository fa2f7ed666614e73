/* Work for later: its progress, its hours, and a hand on the tap. */
import {act, getIfThere, inWords, send} from "./api.js";
import {$, h, has, keyed, num, onChange, percent, setText, t, time} from "./base.js";
import {live, on} from "./live.js";

const GOING = ["validating", "in_progress", "finalizing"];

let batches = null; /* null: this server has none */
let hours = null;   /* of /v1/background; null: not known */

const toldOf = (b) => live.state?.jobs?.find((j) => j.id === b.id);

/* With its owner's name where it is somebody else's. */
function nameOf(b) {
  const name = b.metadata?.name || b.metadata?.title || b.id;
  const person = toldOf(b)?.person;
  return person && person !== live.hello?.person ? `${name} (${person})` : name;
}

/* Lines a second lately, and the seconds that are left at that pace; without, since it began. */
function pace(b) {
  const told = toldOf(b);
  if (told?.rate > 0) return {rate: told.rate, left_s: told.eta_s};
  const {total = 0, completed = 0, failed = 0} = b.request_counts ?? {};
  const s = Date.now() / 1000 - b.in_progress_at;
  const rate = b.status === "in_progress" && s > 1 ? (completed + failed) / s : 0;
  return {rate, left_s: rate > 0 ? (total - completed - failed) / rate : null};
}

const makeRow = (b) => h("tr", {}, h("th", {scope: "row"}), h("td", {class: "state"}),
  h("td", {class: "bar-cell"}, h("progress"), h("span", {class: "value"})), h("td", {class: "eta"}),
  h("td", {class: "acts"}, h("button", {class: "small",
    onclick: (e) => act(e.target, `/v1/batches/${encodeURIComponent(b.id)}/cancel`, read)})));

function stateWords(b) {
  const word = has(`job.${b.status}`) ? t(`job.${b.status}`) : b.status ?? "–";
  const more = [b.gamasot?.paused, b.gamasot?.warning].filter(Boolean).join("; ");
  return more ? `${word} (${more})` : word;
}

function updateRow(el, b) {
  const {total = 0, completed = 0, failed = 0} = b.request_counts ?? {};
  const {rate, left_s} = pace(b);
  setText($("th", el), nameOf(b));
  setText($(".state", el), stateWords(b));
  const bar = $("progress", el);
  bar.max = total || 1;
  bar.value = completed + failed;
  const words = [t("jobs.progress", {done: num(completed), total: num(total)})];
  if (failed > 0) words.push(t("jobs.failed", {n: num(failed)}));
  if (rate > 0) words.push(t("jobs.rate", {n: num(rate * 60, 1)}));
  setText($(".value", el), words.join(", "));
  bar.setAttribute("aria-label", `${nameOf(b)}: ${words.join(", ")}`);
  setText($(".eta", el), left_s === null ? "–" : time(left_s * 1000));
  const stop = $("button", el);
  setText(stop, t("act.stop"));
  stop.setAttribute("aria-label", `${t("act.stop")} – ${nameOf(b)}`);
  stop.hidden = !GOING.includes(b.status);
}

const isPaused = () => hours?.paused ?? live.state?.background?.paused ?? false;

/* The hours of background work, and when they begin or end next. */
function scheduleWords() {
  if (!hours?.schedule) return "";
  const at = hours.open ? hours.closes_at : hours.opens_at;
  const clock = new Intl.DateTimeFormat(document.documentElement.lang, {weekday: "short",
    hour: "numeric", minute: "2-digit"});
  const next = at ? ` ${t(hours.open ? "jobs.closes" : "jobs.opens", {time: clock.format(new Date(at * 1000))})}` : "";
  return t("jobs.schedule", {schedule: hours.schedule}) + next;
}

function fill() {
  const list = batches ?? [];
  keyed($("#job-rows"), list, (b) => b.id, makeRow, updateRow);
  $("#jobs-table").hidden = list.length === 0;
  $("#jobs-none").hidden = list.length > 0;
  setText($("#jobs-none"), t(batches === null ? "jobs.off" : "jobs.none"));
  const share = live.state?.background?.share;
  setText($("#jobs-share"), Number.isFinite(share) ? t("jobs.share", {share: percent(share, 1)}) : "");
  setText($("#jobs-pause"), t(isPaused() ? "jobs.resume_all" : "jobs.pause_all"));
  $("#jobs-schedule").hidden = !hours?.schedule;
  setText($("#jobs-schedule"), scheduleWords());
}

async function read() {
  try {
    const [list, background] = await Promise.all([getIfThere("/v1/batches?limit=100&all=true"), getIfThere("/v1/background")]);
    batches = list?.data ?? null;
    hours = background;
    fill();
  } catch { /* the link at the top says that the server is away */ }
}

async function pauseAll(event) {
  event.target.disabled = true;
  try {
    if (hours) await send("POST", `/v1/background/${hours.paused ? "resume" : "pause"}`, {body: {}});
    else await send("PATCH", "/v1/config", {body: {"sched.background_paused": !isPaused()}});
    setText($("#action-note"), t("act.done"));
    await read();
  } catch (error) {
    setText($("#action-note"), t("act.failed", {message: inWords(error)}));
  } finally {
    event.target.disabled = false;
  }
}

export function startJobs() {
  let timer = null;
  on("state", fill);
  onChange("language", fill);
  $("#jobs-pause").addEventListener("click", pauseAll);
  return {
    shown() { read(); timer = setInterval(read, 3000); },
    hidden() { clearInterval(timer); },
  };
}
