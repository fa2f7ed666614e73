/* Conversations, kept in this browser alone. */
import {kept, t} from "./base.js";

let all = [];
try {
  const read = JSON.parse(kept.get("chats") ?? "[]");
  all = Array.isArray(read) ? read.filter((c) => c?.id && Array.isArray(c.messages)) : [];
} catch { /* not ours: begin anew */ }

export const conversations = () => all;

export const create = () => ({id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: "", at: Date.now(),
  system: "", messages: []});

/* False: the browser's storage is full. An empty conversation is not kept. */
export function save(c) {
  c.at = Date.now();
  if (!c.title) c.title = (c.messages.find((m) => m.role === "user")?.content ?? "").trim().slice(0, 60);
  if (c.messages.length > 0 && !all.includes(c)) all.unshift(c);
  return kept.set("chats", JSON.stringify(all));
}

export function remove(c) {
  all = all.filter((x) => x !== c);
  kept.set("chats", all.length ? JSON.stringify(all) : null);
}

export function removeAll() {
  all = [];
  kept.set("chats", null);
}

export const titleOf = (c) => c.title || t("chat.untitled");

export function download() {
  const url = URL.createObjectURL(new Blob([JSON.stringify(all, null, 2)], {type: "application/json"}));
  const a = document.createElement("a");
  a.href = url;
  a.download = `gamasot-${new Date().toISOString().slice(0, 10)}.json`;
  a.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
