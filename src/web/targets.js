/* Promises and what became of them: distributions per class against their targets, the trade-off
 * that the tuner has measured, and the past. */
import {getIfThere, send} from "./api.js";
import {$, brief, className, colour, h, keyed, num, onChange, percent, setText, t, table, time} from "./base.js";
import {attained, classInfo, live, on} from "./live.js";
import {CLASSES, classColour} from "./patterns.js";

/* ---- Histograms, out of /metrics ---- */

/* One family's buckets by class: class -> [[upper bound in s, count in all up to it]]. */
export function histograms(text, family) {
  const out = new Map();
  for (const line of text.split("\n")) {
    if (!line.startsWith(`${family}_bucket{`)) continue;
    const labels = Object.fromEntries([...line.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map((m) => [m[1], m[2]]));
    const count = Number(line.slice(line.lastIndexOf("}") + 1).trim().split(" ")[0]);
    const le = labels.le === "+Inf" ? Infinity : Number(labels.le);
    const sums = out.get(labels.class) ?? new Map();
    sums.set(le, (sums.get(le) ?? 0) + count);
    out.set(labels.class, sums);
  }
  for (const [c, sums] of out) out.set(c, [...sums].sort((a, b) => a[0] - b[0]));
  return out;
}

/* Bars between the first and last bucket that hold anything, and the target's. */
function bars(buckets, target_s) {
  const each = buckets.map(([le, n], i) => ({le, n: n - (i > 0 ? buckets[i - 1][1] : 0)}));
  let first = each.findIndex((b) => b.n > 0);
  let last = each.findLastIndex((b) => b.n > 0);
  if (first < 0) return [];
  if (target_s > 0) {
    const at = each.findIndex((b) => b.le >= target_s);
    if (at >= 0) { first = Math.min(first, at); last = Math.max(last, at + 1); }
  }
  return each.slice(Math.max(0, first - 1), last + 1);
}

function histogram(buckets, target_ms) {
  const list = bars(buckets ?? [], target_ms / 1000);
  const all = list.reduce((sum, b) => sum + b.n, 0);
  if (all === 0) return h("p", {class: "muted"}, t("targets.none"));
  const most = Math.max(...list.map((b) => b.n));
  const within = list.filter((b) => target_ms > 0 && b.le * 1000 <= target_ms).reduce((sum, b) => sum + b.n, 0);
  const label = target_ms > 0 ? t("targets.hist", {n: num(within), all: num(all), time: time(target_ms)}) : "";
  let cut = false;
  return h("div", {class: "hist", role: "img", "aria-label": label}, ...list.map((b) => {
    const late = target_ms > 0 && b.le * 1000 > target_ms;
    const edge = late && !cut;
    cut ||= late;
    const fill = h("span", {class: `fill${late ? " late" : ""}`});
    fill.style.height = `${b.n === 0 ? 0 : Math.max(3, (b.n / most) * 100)}%`;
    return h("span", {class: `hbar${edge ? " edge" : ""}`,
      title: `≤ ${Number.isFinite(b.le) ? time(b.le * 1000) : "∞"}: ${num(b.n)}`}, fill,
    h("small", {}, Number.isFinite(b.le) ? shortTime(b.le) : "∞"));
  }));
}

const shortTime = (s) => (s < 1 ? `${brief(s * 1000)}m` : `${brief(s)}s`);

let texts = null; /* of /metrics: {ttft, itl} */

const FAMILIES = {ttft: "gamasot_time_to_first_token_seconds", itl: "gamasot_inter_token_latency_seconds"};

function half(name, c, target) {
  const p = c[`${name}_ms`] ?? {};
  return h("div", {class: "half"}, h("h4", {}, t(`targets.${name}`), " ",
    h("small", {}, target > 0 ? t("targets.target", {time: time(target)}) : t("targets.no_target"))),
  histogram(texts?.[name]?.get(c.name), target),
  h("p", {class: "pair"}, `${t("targets.half")} `, h("b", {}, time(p.p50)), ` · ${t("targets.most")} `,
    h("b", {class: target > 0 && p.p95 > target ? "bad" : ""}, time(p.p95))));
}

function fillClass(el, c) {
  const info = classInfo(c.name) ?? {};
  const complete = info.complete_ms > 0
    ? [h("p", {class: "met"}, t("targets.complete", {time: time(info.complete_ms)}))] : [];
  el.replaceChildren(
    h("h3", {}, h("span", {class: `swatch c-${c.name}`}), className(c.name), " ",
      h("small", {}, t(`class.about.${c.name}`))),
    ...complete,
    h("p", {class: "met"}, h("b", {}, attained(c) === null ? "–" : percent(attained(c), 1)), ` ${t("targets.attained")} · `,
      h("b", {}, brief(c.tokens_per_s)), ` ${t("targets.tps")}`),
    h("div", {class: "halves"}, half("ttft", c, info.ttft_ms ?? 0), half("itl", c, info.tpot_ms ?? 0)));
}

function fillClasses() {
  const state = live.state;
  if (!state || $("#view-targets").hidden) return;
  keyed($("#target-classes"), state.classes ?? [], (c) => c.name,
    () => h("article", {class: "card target"}), fillClass);
  const tp = state.throughput ?? {};
  setText($("#targets-together"), t("targets.together",
    {prefill: brief(tp.prefill_tps), decode: brief(tp.decode_tps), embed: brief(tp.embed_tps)}));
}

async function readMetrics() {
  try {
    const text = await (await send("GET", "/metrics", {quiet: true})).text();
    texts = Object.fromEntries(Object.entries(FAMILIES).map(([k, f]) => [k, histograms(text, f)]));
    fillClasses();
  } catch { /* the link at the top says that the server is away */ }
}

/* ---- Charts ---- */

const charts = new Map(); /* element -> chart and how it was made */

let library = null;

/* Script and style of the chart library, when the first chart is drawn. */
function loadLibrary() {
  library ??= Promise.all([import("./uplot.js"), new Promise((resolve) => {
    document.head.append(h("link", {rel: "stylesheet", href: "/web/uplot.css", onload: resolve}));
  })]).then(([module]) => module.default);
  return library;
}

async function chart(el, make) {
  const UPlot = await loadLibrary();
  charts.get(el)?.destroy();
  const {options, data} = make();
  const axis = {stroke: colour("--muted"), grid: {stroke: colour("--line"), width: 1},
    ticks: {stroke: colour("--line"), width: 1}, font: "11px system-ui, sans-serif"};
  options.axes = options.axes.map((a) => ({...axis, ...a}));
  charts.set(el, new UPlot({width: el.clientWidth || 600, height: 240, ...options}, data, el));
}

addEventListener("resize", () => {
  for (const [el, c] of charts) if (el.clientWidth) c.setSize({width: el.clientWidth, height: 240});
});

let tuned = null;

async function drawTune() {
  tuned = await getIfThere("/v1/tune");
  const points = tuned?.curve ?? [];
  $("#tune-none").hidden = points.length > 0;
  $("#tune-chart").hidden = $("#tune-table").hidden = points.length === 0;
  if (points.length === 0) return;
  const sorted = [...points].sort((a, b) => a.tokens_per_s - b.tokens_per_s);
  const chosen = points[tuned.chosen];
  await chart($("#tune-chart"), () => ({
    options: {
      scales: {x: {time: false}}, legend: {show: false},
      axes: [{label: t("tune.x")}, {label: t("tune.y")}],
      series: [{}, {stroke: colour("--accent"), width: 2, points: {show: true, size: 7}},
        {stroke: colour("--ink"), width: 0, points: {show: true, size: 15, width: 2, fill: "transparent"}}],
    },
    data: [sorted.map((p) => p.tokens_per_s), sorted.map((p) => p.ttft_p95_ms),
      sorted.map((p) => (p === chosen ? p.ttft_p95_ms : null))],
  }));
  $("#tune-table div").replaceChildren(table(t("tune.title"), [t("col.load"), t("tune.x"), t("tune.y"),
    t("targets.itl"), t("col.holds")], points.map((p) => [brief(p.load), brief(p.tokens_per_s),
    time(p.ttft_p95_ms), time(p.itl_p95_ms), t(p.holds ? "yes" : "no")])));
}

/* [from, to, step] in seconds. Yesterday evening: 17 to 23 o'clock, as the clock here says. */
function range(name) {
  const now = Math.floor(Date.now() / 1000);
  if (name === "hour") return [now - 3600, now, 60];
  if (name === "day") return [now - 86400, now, 600];
  if (name === "week") return [now - 7 * 86400, now, 3600];
  const evening = new Date();
  evening.setDate(evening.getDate() - 1);
  evening.setHours(17, 0, 0, 0);
  const from = Math.floor(evening / 1000);
  return [from, from + 6 * 3600, 120];
}

const ttftOf = (row, c) => row.classes.find((x) => x.name === c)?.ttft_ms.p95 ?? null;

async function drawHistory() {
  const [from, to, step] = range($("#history-range").value);
  const rows = (await getIfThere(`/v1/history?from=${from}&to=${to}&step=${step}`))?.rows ?? [];
  const note = $("#history-none");
  note.hidden = rows.length > 0;
  setText(note, t("history.none"));
  $("#history-chart").hidden = $("#history-table").hidden = rows.length === 0;
  if (rows.length === 0) return;
  const used = CLASSES.filter((c) => rows.some((r) => ttftOf(r, c) !== null));
  await chart($("#history-chart"), () => ({
    options: {
      scales: {busy: {range: [0, 100]}},
      axes: [{}, {label: t("history.ttft")}, {scale: "busy", side: 1, label: t("history.busy"), grid: {show: false}}],
      series: [{label: t("col.time")},
        ...used.map((c) => ({label: className(c), stroke: classColour(c), width: 2, spanGaps: false})),
        {label: t("history.busy"), scale: "busy", stroke: colour("--muted"), fill: colour("--free"), width: 1}],
    },
    data: [rows.map((r) => r.t), ...used.map((c) => rows.map((r) => ttftOf(r, c))),
      rows.map((r) => r.busy * 100)],
  }));
  const clock = new Intl.DateTimeFormat(document.documentElement.lang, {dateStyle: "short", timeStyle: "short"});
  $("#history-table div").replaceChildren(table(t("history.title"),
    [t("col.time"), ...used.map(className), t("history.busy")],
    rows.slice(-60).reverse().map((r) => [clock.format(new Date(r.t * 1000)),
      ...used.map((c) => time(ttftOf(r, c))), percent(r.busy)])));
}

/* ---- */

const drawAll = () => Promise.all([drawTune(), drawHistory()]).catch(() => {});

export function startTargets() {
  let timer = null;
  on("state", fillClasses);
  const again = () => { if (!$("#view-targets").hidden) { fillClasses(); drawAll(); } };
  onChange("language", again);
  onChange("theme", again);
  $("#history-range").addEventListener("change", () => drawHistory().catch(() => {}));
  return {
    shown() {
      fillClasses();
      readMetrics();
      timer = setInterval(readMetrics, 3000);
      drawAll();
    },
    hidden() { clearInterval(timer); },
  };
}
