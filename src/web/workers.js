/* The machines that answer: which are there, and what each has to do. Hidden while there is one. */
import {$, h, has, keyed, num, onChange, setText, t, time} from "./base.js";
import {live, on} from "./live.js";

const COLUMNS = ["state", "running", "done", "faults", "predicted"];

const makeRow = () => h("tr", {}, h("th", {scope: "row"}), ...COLUMNS.map((c) => h("td", {class: c})));

function stateWords(w) {
  const word = has(`worker.${w.state}`) ? t(`worker.${w.state}`) : w.state;
  return w.failure && w.state !== "up" ? `${word} (${w.failure})` : word;
}

function updateRow(el, w) {
  const first = w.predicted?.first_token_ms;
  setText($("th", el), w.kind === "local" ? t("workers.local") : w.name);
  setText($(".state", el), stateWords(w));
  setText($(".running", el), t("workers.of", {n: num(w.running), max: num(w.max_sequences)}));
  setText($(".done", el), num(w.done));
  setText($(".faults", el), num(w.faults));
  setText($(".predicted", el), Number.isFinite(first) ? time(first) : "–");
}

function fill() {
  const workers = live.state?.workers ?? [];
  $("#workers").hidden = workers.length === 0;
  keyed($("#worker-rows"), workers, (w) => w.name, makeRow, updateRow);
}

export function startWorkers() {
  on("state", fill);
  onChange("language", fill);
}
