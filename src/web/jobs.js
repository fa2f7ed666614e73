/* Work for later: its progress, its hours, and a hand on the tap. */
import {act, getIfThere, inWords, send} from "./api.js";
import {$, h, has, keyed, num, onChange, percent, setText, t, time} from "./base.js";
import {live, on} from "./live.js";

const GOING = ["validating", "in_progress", "running", "queued", "waiting", "scheduled", "finalizing"];

/* A batch as /v1/batches has it, in the words of the live data. */
const ofBatch = (b) => ({id: b.id, name: b.metadata?.name ?? b.input_file_name ?? b.id, status: b.paused ? "paused" : b.status,
  person: b.person, total: b.request_counts?.total ?? 0, done: b.request_counts?.completed ?? 0,
  failed: b.request_counts?.failed ?? 0, eta_s: b.eta_s, rate: b.rate, schedule: b.schedule});

let batches = null; /* null: this server has none */

/* The live ones know more; the others are the past. */
function jobs() {
  const liveJobs = live.state?.jobs ?? [];
  const known = new Set(liveJobs.map((j) => j.id));
  return [...liveJobs, ...(batches ?? []).map(ofBatch).filter((j) => !known.has(j.id))];
}

function makeRow(j) {
  const path = `/v1/batches/${encodeURIComponent(j.id)}`;
  const button = (name, action) => h("button", {class: "small", "data-act": name,
    onclick: (e) => act(e.target, `${path}/${action}`, read)});
  return h("tr", {}, h("th", {scope: "row"}), h("td", {class: "person"}), h("td", {class: "state"}),
    h("td", {class: "bar-cell"}, h("progress"), h("span", {class: "value"})), h("td", {class: "eta"}),
    h("td", {class: "acts"}, button("pause", "pause"), button("resume", "resume"), button("stop", "cancel")));
}

function updateRow(el, j) {
  setText($("th", el), j.name || j.id);
  setText($(".person", el), j.person || "–");
  setText($(".state", el), has(`job.${j.status}`) ? t(`job.${j.status}`) : j.status ?? "–");
  const bar = $("progress", el);
  bar.max = j.total || 1;
  bar.value = (j.done ?? 0) + (j.failed ?? 0);
  const words = [t("jobs.progress", {done: num(j.done), total: num(j.total)})];
  if (j.failed > 0) words.push(t("jobs.failed", {n: num(j.failed)}));
  if (j.rate > 0) words.push(t("jobs.rate", {n: num(j.rate * 60, 1)}));
  setText($(".value", el), words.join(", "));
  bar.setAttribute("aria-label", `${j.name || j.id}: ${words.join(", ")}`);
  setText($(".eta", el), j.eta_s > 0 && GOING.includes(j.status) ? time(j.eta_s * 1000) : "–");
  for (const b of el.querySelectorAll("button")) {
    const name = b.dataset.act;
    setText(b, t(`act.${name}`));
    b.setAttribute("aria-label", `${t(`act.${name}`)} – ${j.name || j.id}`);
    const going = GOING.includes(j.status);
    b.hidden = name === "resume" ? j.status !== "paused" : name === "pause" ? !going : !going && j.status !== "paused";
  }
}

function fill() {
  const list = jobs();
  keyed($("#job-rows"), list, (j) => j.id, makeRow, updateRow);
  $("#jobs-table").hidden = list.length === 0;
  $("#jobs-none").hidden = list.length > 0;
  setText($("#jobs-none"), t(batches === null ? "jobs.off" : "jobs.none"));
  const background = live.state?.background ?? {};
  setText($("#jobs-share"), Number.isFinite(background.share) ? t("jobs.share", {share: percent(background.share, 1)}) : "");
  setText($("#jobs-pause"), t(background.paused ? "jobs.resume_all" : "jobs.pause_all"));
  const schedule = background.schedule ?? live.state?.jobs?.find((j) => j.schedule)?.schedule;
  $("#jobs-schedule").hidden = !schedule;
  setText($("#jobs-schedule"), schedule ? t("jobs.schedule", {schedule}) : "");
}

async function read() {
  try {
    const said = await getIfThere("/v1/batches?limit=100");
    batches = said?.data ?? null;
    fill();
  } catch { /* the link at the top says that the server is away */ }
}

async function pauseAll(event) {
  event.target.disabled = true;
  try {
    await send("PATCH", "/v1/config", {body: {"sched.background_paused": !live.state?.background?.paused}});
    setText($("#action-note"), t("act.done"));
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
