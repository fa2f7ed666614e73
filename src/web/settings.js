/* The option table: everything that is set, and what can be changed while the server runs. */
import {ApiError, getJson, inWords, send} from "./api.js";
import {$, h, num, onChange, setText, t} from "./base.js";

let config = null;
const changed = new Map(); /* name -> new value */

/* A row of the server's table; a server that tells only values still shows these. */
const rowOf = (name) => config.table?.find((o) => o.name === name) ??
  {name, kind: typeof config.options[name] === "boolean" ? "bool" : "string"};

const shownValue = (v) => (Array.isArray(v) ? v.join(", ") : String(v));
const isNumber = (row) => ["int", "float", "duration_ms", "size_mb", "port"].includes(row.kind);

function control(row, value, id) {
  const about = `${id}-about`;
  if (row.kind === "bool") {
    const box = h("input", {type: "checkbox", id, "aria-describedby": about, "data-name": row.name});
    box.checked = value;
    return box;
  }
  if (row.kind === "enum" && row.choices)
    return h("select", {id, "aria-describedby": about, "data-name": row.name},
      ...row.choices.map((c) => h("option", {value: c, selected: c === value}, c)));
  return h("input", {type: isNumber(row) ? "number" : "text", step: "any", id, min: row.min, max: row.max,
    value: shownValue(value), "aria-describedby": about, "data-name": row.name});
}

function optionRow(name) {
  const row = rowOf(name);
  const value = config.options[name];
  const id = `o-${name.replaceAll(".", "-")}`;
  const isLive = config.live.includes(name);
  const same = isNumber(row) ? Number(row.default) === value : shownValue(row.default) === shownValue(value);
  const help = [row.help, row.default !== undefined && row.default !== "" && !same
    ? t("settings.default", {value: shownValue(row.default)}) : ""].filter(Boolean).join(" ");
  return h("div", {class: "option", "data-name": name, "data-live": String(isLive)},
    h("label", {for: isLive ? id : undefined}, name.split(".").slice(1).join(".") || name),
    isLive ? control(row, value, id)
      : h("span", {class: "fixed", title: t("settings.restart")}, shownValue(value) || "–"),
    h("p", {class: "about", id: `${id}-about`}, help, isLive ? "" : h("small", {}, ` (${t("settings.restart")})`)),
    h("p", {class: "bad problem", role: "alert", hidden: true}));
}

function fill() {
  if (!config) return;
  const sections = new Map();
  for (const name of Object.keys(config.options)) {
    const section = name.split(".")[0];
    sections.set(section, [...(sections.get(section) ?? []), name]);
  }
  $("#option-list").replaceChildren(...[...sections].map(([section, names]) =>
    h("section", {class: "card", "data-section": section}, h("h3", {}, section), ...names.map(optionRow))));
  changed.clear();
  note();
  filter();
}

function filter() {
  const words = $("#settings-find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const onlyLive = $("#settings-live").checked;
  let any = false;
  for (const section of $("#option-list").children) {
    let some = false;
    for (const el of section.querySelectorAll(".option")) {
      const text = `${el.dataset.name} ${$(".about", el).textContent}`.toLowerCase();
      el.hidden = !words.every((w) => text.includes(w)) || (onlyLive && el.dataset.live !== "true");
      some ||= !el.hidden;
    }
    section.hidden = !some;
    any ||= some;
  }
  $("#settings-none").hidden = any || !config;
}

function note() {
  const n = changed.size;
  $("#settings-bar").hidden = n === 0;
  setText($("#settings-count"), t("settings.changed", {n: num(n)}));
}

function onInput(event) {
  const el = event.target;
  const name = el.dataset.name;
  if (!name) return;
  const value = el.type === "checkbox" ? el.checked : isNumber(rowOf(name)) && el.value !== "" ? Number(el.value) : el.value;
  if (shownValue(value) === shownValue(config.options[name])) changed.delete(name);
  else changed.set(name, value);
  note();
}

function problem(name, text) {
  const el = $(`.option[data-name="${CSS.escape(name)}"] .problem`);
  if (!el) return false;
  el.hidden = false;
  setText(el, text);
  $("input, select", el.parentElement)?.focus();
  return true;
}

async function save() {
  for (const el of $("#option-list").querySelectorAll(".problem")) el.hidden = true;
  try {
    const response = await send("PATCH", "/v1/config", {body: Object.fromEntries(changed)});
    config = {...config, ...await response.json()};
    fill();
    setText($("#action-note"), t("settings.saved"));
  } catch (error) {
    if (!(error instanceof ApiError && error.param && problem(error.param, error.message)))
      setText($("#action-note"), t("act.failed", {message: error instanceof ApiError ? error.message : inWords(error)}));
  }
}

async function read() {
  try {
    config = await getJson("/v1/config", {quiet: true});
    fill();
  } catch (error) {
    setText($("#action-note"), inWords(error));
  }
}

export function startSettings() {
  $("#settings-find").addEventListener("input", filter);
  $("#settings-live").addEventListener("change", filter);
  $("#option-list").addEventListener("input", onInput);
  $("#settings-save").addEventListener("click", save);
  $("#settings-reset").addEventListener("click", fill);
  onChange("language", fill);
  return {shown() { if (changed.size === 0) read(); }, hidden() {}};
}
