/* The memory for conversations: each block of each pool, coloured by class or by person. */
import {$, className, colour, fitCanvas, h, keyed, num, onChange, setText, t, table} from "./base.js";
import {kvPools, live, on} from "./live.js";
import {classColour, forgetPatterns, pattern, personColour} from "./patterns.js";

const LEAST = 5, MOST = 15; /* CSS pixels of a cell */
const LEAST_DRAWN = 900;    /* blocks; of a larger pool, free ones behind the last used are left out */

let byPerson = false;

const ownersOf = (pool) => pool.owners ?? live.state?.kv_owners ?? [];

/* How the blocks lie: cells of a size that shows as many blocks as possible, k blocks to a cell. */
function layout(n, w, height) {
  const fit = (size) => Math.floor(w / size) * Math.floor(height / size);
  let size = MOST;
  while (size > LEAST && fit(size) < n) size--;
  const cells = fit(size);
  return {size, columns: Math.max(1, Math.floor(w / size)), k: Math.max(1, Math.ceil(n / cells))};
}

/* Runs cut into cells of k blocks; a cell shows what most of it is, but never hides a live one. */
function* cells(runs, owners, k) {
  const rank = {seq: 4, held: 3, pinned: 2, cached: 1, free: 0};
  let best = null, filled = 0;
  for (const [owner, count] of runs) {
    for (let left = count; left > 0;) {
      const take = Math.min(left, k - filled);
      const o = owners[owner] ?? {kind: "free"};
      if (!best || rank[o.kind] > rank[best.kind]) best = o;
      filled += take;
      left -= take;
      if (filled === k) {
        yield best;
        best = null;
        filled = 0;
      }
    }
  }
  if (best) yield best;
}

function fillOf(g, owner) {
  if (owner.kind === "free") return colour("--free");
  if (owner.kind === "pinned") return pattern(g, colour("--ink"), "embed");
  if (owner.kind === "cached") return pattern(g, colour("--edge"), "prefill");
  if (owner.kind === "held") return colour("--edge");
  return byPerson ? personColour(owner.person) : classColour(owner.class);
}

/* The runs to draw, and how many free blocks at the end are not among them. */
function drawn(pool) {
  const runs = pool.runs ?? [];
  const [owner, free] = runs.at(-1) ?? [0, 0];
  if (ownersOf(pool)[owner]?.kind !== "free") return {runs, rest: 0};
  const rest = Math.min(free, pool.blocks - Math.max(LEAST_DRAWN, Math.round((pool.blocks - free) * 1.25)));
  return rest > 0 ? {runs: [...runs.slice(0, -1), [owner, free - rest]], rest} : {runs, rest: 0};
}

function drawPool(canvas, pool) {
  if (canvas.clientWidth === 0) return;
  const {g, w, h: height} = fitCanvas(canvas);
  const {runs, rest} = drawn(pool);
  const {size, columns, k} = layout(pool.blocks - rest, w, height);
  let i = 0;
  for (const owner of cells(runs, ownersOf(pool), k)) {
    g.fillStyle = fillOf(g, owner);
    g.fillRect((i % columns) * size, Math.floor(i / columns) * size, size - 1.5, size - 1.5);
    i++;
  }
}

function ownerName(o) {
  if (o.kind !== "seq") return t(`kv.${o.kind}`);
  return `${className(o.class)}${o.person ? `, ${o.person}` : ""}`;
}

function fillTable(details, pool, model) {
  if (!details.open) return;
  const tokens = model?.block_tokens ?? 0;
  const sums = new Map();
  for (const [owner, count] of pool.runs ?? []) {
    const name = ownerName(ownersOf(pool)[owner] ?? {kind: "free"});
    sums.set(name, (sums.get(name) ?? 0) + count);
  }
  const rows = [...sums].sort((a, b) => b[1] - a[1])
    .map(([name, count]) => [name, num(count), num(count * tokens)]);
  $("div", details).replaceChildren(table(t("kv.title"),
    [t("col.owner"), t("col.blocks"), t("col.tokens")], rows));
}

function makePool() {
  const canvas = h("canvas", {class: "kv", role: "img"});
  return h("div", {class: "pool"}, h("h3"), canvas, h("p", {class: "sum"}),
    h("details", {}, h("summary", {"data-t": "table"}, t("table")), h("div", {class: "scroll"})));
}

function draw() {
  const pools = kvPools(live.state);
  keyed($("#kv-pools"), pools.map((pool, i) => ({pool, i})), (x) => x.i, makePool, (el, {pool}) => {
    const name = pool.model ?? "";
    const model = live.hello?.models?.find((m) => m.name === name);
    $("h3", el).hidden = pools.length < 2;
    setText($("h3", el), name);
    const canvas = $("canvas", el);
    const sum = t("kv.sum", {held: num(pool.held), all: num(pool.blocks), cached: num(pool.cached),
      pinned: num(pool.pinned), free: num(pool.free)});
    const {rest} = drawn(pool);
    setText($(".sum", el), rest > 0 ? `${sum} ${t("kv.rest", {n: num(rest)})}` : sum);
    canvas.setAttribute("aria-label", `${t("kv.label", {model: name})}: ${sum}`);
    drawPool(canvas, pool);
    fillTable($("details", el), pool, model);
  });
  setText($("#kv-about"), t("kv.about", {tokens: live.hello?.models?.find((m) => m.block_tokens)?.block_tokens ?? "–"}));
}

function legend() {
  const people = byPerson
    ? [...new Set((live.state?.kv_owners ?? []).filter((o) => o.kind === "seq").map((o) => o.person ?? t("somebody")))]
    : [];
  const colours = byPerson
    ? people.map((p) => {
      const swatch = h("span", {class: "swatch"});
      swatch.style.background = personColour(p);
      return h("li", {}, swatch, p);
    })
    : (live.hello?.classes ?? []).map((c) => h("li", {}, h("span", {class: `swatch c-${c.name}`}), className(c.name)));
  $("#kv-legend").replaceChildren(...colours,
    ...["cached", "pinned", "free"].map((k) => h("li", {}, h("span", {class: `swatch k-${k}`}), t(`kv.${k}`))));
}

export function startKvMap() {
  const all = () => { draw(); legend(); };
  on("state", all);
  onChange("language", all);
  onChange("theme", () => { forgetPatterns(); all(); });
  new ResizeObserver(draw).observe($("#kv-pools"));
  for (const radio of document.getElementsByName("kv-by"))
    radio.addEventListener("change", () => {
      byPerson = radio.value === "person";
      all();
    });
}
