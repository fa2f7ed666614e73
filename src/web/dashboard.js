/* The dashboard: its views, the sentence and the lights at the top, the state of the connection. */
import {askKey} from "./api.js";
import {$, announce, className, brief, h, keyed, lookControls, num, onChange, percent, setText, t, time,
  translatePage} from "./base.js";
import {startJobs} from "./jobs.js";
import {startKvMap} from "./kvmap.js";
import {classInfo, connect, kvPools, live, on} from "./live.js";
import {startModels} from "./models.js";
import {startPeople} from "./people.js";
import {fillQueue} from "./queue.js";
import {headline, light} from "./sentence.js";
import {startSettings} from "./settings.js";
import {startSteps} from "./steps.js";
import {startTargets} from "./targets.js";
import {startWorkers} from "./workers.js";

/* ---- Now ---- */

let said = "";

function fillHero() {
  const {level, main, more} = headline();
  $(".hero").dataset.level = level;
  setText($("#sentence"), main);
  setText($("#sentence-more"), more);
  if (level !== said && live.state) {
    said = level;
    announce(main);
  }
}

const makeLight = () => h("li", {class: "light"}, h("span", {class: "lamp", "aria-hidden": "true"}),
  h("span", {class: "name"}), h("span", {class: "word"}), h("small"));

function updateLight(el, c) {
  const level = light(c, live.state.waiting ?? []);
  el.dataset.level = level;
  el.title = t(`class.about.${c.name}`);
  setText($(".name", el), className(c.name));
  setText($(".word", el), t(`light.${level}`));
  const target = classInfo(c.name)?.ttft_ms;
  const p95 = c.ttft_ms?.n > 0 ? c.ttft_ms.p95 : null;
  setText($("small", el), p95 === null ? "" : target > 0 ? `${time(p95)} / ${time(target)}` : time(p95));
}

/* Of all pools together. */
function kvUse(state) {
  const pools = kvPools(state);
  const all = pools.reduce((n, p) => n + p.blocks, 0);
  return all > 0 ? pools.reduce((n, p) => n + p.held, 0) / all : NaN;
}

function fillNow() {
  fillHero();
  const {state} = live;
  if (!state) return;
  keyed($("#lights"), state.classes ?? [], (c) => c.name, makeLight, updateLight);
  setText($("#n-running"), num(state.running.length));
  setText($("#n-waiting"), num(state.waiting.length));
  setText($("#n-tps"), brief(state.throughput?.decode_tps));
  setText($("#n-read"), brief(state.throughput?.prefill_tps));
  setText($("#n-kv"), percent(kvUse(state), 1));
  setText($("#n-fair"), num(state.fairness_jain, 2));
  if ($("#view-now").hidden) return;
  fillQueue($("#running"), state.running);
  fillQueue($("#waiting"), state.waiting);
}

/* ---- The connection ---- */

function fillLink() {
  $("#link").dataset.link = live.link;
  document.body.classList.toggle("stale", ["stale", "lost", "denied"].includes(live.link) && live.stateAt > 0);
  setText($("#link-text"), t(`link.${live.link}`, {time: time(Math.round((Date.now() - live.stateAt) / 1000) * 1000)}));
  fillHero();
}

async function otherKey() {
  if (await askKey({admin: true})) connect(true);
}

/* ---- Views ---- */

const views = {};
let current = null;

function show() {
  const wanted = location.hash.slice(1);
  if (wanted === "main") return; /* the skip link */
  const name = wanted in views ? wanted : "now";
  if (name === current) return;
  views[current]?.hidden?.();
  for (const view of Object.keys(views)) $(`#view-${view}`).hidden = view !== name;
  for (const a of document.querySelectorAll("nav a"))
    if (a.hash === `#${name}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  document.title = `${t(`nav.${name}`)} – ${t("app")}`;
  setText($("#action-note"), "");
  if (current) {
    scrollTo(0, 0);
    $("#main").focus({preventScroll: true});
  }
  current = name;
  views[name].shown?.();
}

function start() {
  lookControls($("#look"));
  translatePage();
  startSteps();
  startKvMap();
  startWorkers();
  Object.assign(views, {now: {shown: fillNow}, people: startPeople() ?? {}, targets: startTargets(), jobs: startJobs(),
    models: startModels(), settings: startSettings()});
  on("state", fillNow);
  on("link", fillLink);
  on("hello", (hello) => { $("#viewer-note").hidden = hello.admin !== false; });
  $("#viewer-key").addEventListener("click", otherKey);
  onChange("language", () => { fillNow(); fillLink(); document.title = `${t(`nav.${current}`)} – ${t("app")}`; });
  $("#link").addEventListener("click", otherKey);
  addEventListener("hashchange", show);
  fillLink();
  show();
  connect();
}

start();
