// What a page does when its process answers, stops answering, or wants a token: the same for a daemon and for a fleet.
import { byId, clock, Refused, send, setText } from "./words.js";

export const session = { answeredAt: Date.now(), signedIn: false };
let mayOpen = true, processName = "", refresh = () => {};

// Connect the page's buttons and its dialog. `name`: the process that answers, as a sentence begins with it.
export function begin(name, again) {
  processName = name;
  refresh = again;
  byId("sign").addEventListener("click", sign);
  byId("signin").addEventListener("close", signedIn);
  for (const one of document.querySelectorAll("[data-close]")) one.addEventListener("click", () => byId(one.dataset.close).close("no"));
  document.addEventListener("visibilitychange", refresh);
}

export function tone(element, text, kind) {
  setText(element, text);
  element.className = `pill ${kind}`;
}

export function answered() {
  session.answeredAt = Date.now();
  byId("lost").hidden = true;
  document.body.classList.remove("is-lost");
}

export function lost(error) {
  const why = error instanceof Refused ? ` (${error.message})` : "";
  setText(byId("lost"), `${processName} has not answered since ${clock(session.answeredAt / 1000)}${why}. What you see is from then; the page keeps trying.`);
  byId("lost").hidden = false;
  document.body.classList.add("is-lost");
  tone(byId("state"), "no answer", "bad");
}

export function signedOut() {
  answered();
  tone(byId("state"), "signed out", "warn");
  byId("main").hidden = true;
  byId("sign").hidden = false;
  setText(byId("sign"), "Sign in");
  session.signedIn = false;
  if (mayOpen) signIn();
}

// Show the page to a caller who may see it.
export function welcome(caller) {
  session.signedIn = caller.session;
  byId("main").hidden = false;
  byId("sign").hidden = !caller.needs_token;
  setText(byId("sign"), caller.session ? `Sign out (${caller.name})` : "Sign in");
}

async function sign() {
  if (!session.signedIn) { signIn(); return; }
  await send("DELETE", "api/v1/session", {}).catch(() => {});
  mayOpen = false;
  refresh();
}

function signIn() {
  mayOpen = false;
  byId("signin").returnValue = "no";
  byId("signin").showModal();
}

async function signedIn() {
  const token = byId("token").value;
  byId("token").value = "";
  if (byId("signin").returnValue !== "yes" || !token) return;
  try {
    await send("POST", "api/v1/session", { token });
    setText(byId("signin-said"), "");
    refresh();
  } catch (error) {
    setText(byId("signin-said"), error instanceof Refused ? error.message : `${processName} does not answer.`);
    signIn();
  }
}
