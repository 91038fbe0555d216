// The few bytes that every widget syncs: find the front end in the page, else ask the kernel for it once, and connect.

import { VERSION } from "../doc/version.ts";
import type { Model } from "../live/host.ts";
import { page, type CoreModule } from "../live/page.ts";

// Hosts count their requests from 1; this one is asked before there is a host.
const REQ = 1_000_000_000;

async function importText(bytes: BlobPart): Promise<CoreModule> {
  const blob = new Blob([bytes], { type: "text/javascript" });
  const url = URL.createObjectURL(blob);
  try {
    return await import(url);
  } catch {
    return await import("data:text/javascript," + encodeURIComponent(await blob.text()));
  } finally {
    URL.revokeObjectURL(url);
  }
}

type Part = "picture" | "gdlab" | "later";

/** The text of a part of the front end, when the kernel sends it. */
const partFrom = (model: Model, part: Part): Promise<BlobPart> =>
  new Promise((resolve, reject) => {
    const answer = ({ req, result }: { req?: number; result?: { part?: Part } }, buffers: BlobPart[]) => {
      if (req !== REQ || (result && result.part !== part)) return;
      model.off("msg:custom", answer);
      if (result && buffers[0]) resolve(buffers[0]);
      else reject(new Error("the kernel has no front end"));
    };
    model.on("msg:custom", answer);
  });

/** Connects this widget with its kernel; again after a failure. */
let connected: () => Promise<void> = () => Promise.resolve();
/** The still picture of the study, if this widget asked the kernel for the front end. */
let picture: Promise<BlobPart> | null = null;

/**
 * Ask the kernel for the front end. It sends a picture, then the first part, and behind it the second, which waits
 * until a pane needs it.
 */
function ask(model: Model): Promise<CoreModule> {
  const send = () => model.send({ type: "core", req: REQ });
  const first = partFrom(model, "gdlab");
  let second: Promise<BlobPart> | null = partFrom(model, "later");
  second.catch(() => {});
  picture = partFrom(model, "picture");
  picture.catch(() => {});
  (page().later ??= {})[VERSION] = () => {
    const bytes = second ?? partFrom(model, "later");
    if (!second) send(); // it failed before
    second = null;
    return bytes.then(importText);
  };
  send();
  return first.then(importText);
}

function core(model: Model): Promise<CoreModule> {
  const cores = page().core;
  return (cores[VERSION] ??= ask(model).catch(error => {
    delete cores[VERSION];
    throw error;
  }));
}

/** Show the picture until the view has drawn; where a picture stands beside the widget (marimo), that one is enough. */
async function showStill(el: HTMLElement, study: string): Promise<void> {
  const svg = picture && (await new Blob([await picture]).text());
  if (!svg || el.childElementCount > 0 || document.querySelector(`[data-gdlab-static="${study}"]`)) return;
  const still = document.createElement("img"); // runs nothing of what it shows
  still.className = "gd-still";
  still.alt = "graph";
  still.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  still.style.maxWidth = "100%";
  el.prepend(still);
  const drawn = new MutationObserver(() => {
    if (!el.querySelector(".gd-frame")) return;
    still.remove();
    drawn.disconnect();
  });
  drawn.observe(el, { childList: true });
}

/** Show the reason why there is no view, with a button that tries again. */
function failure({ message }: Error, retry: () => void): HTMLElement {
  const said = document.createElement("p"),
    again = document.createElement("button");
  again.textContent = "Retry";
  again.addEventListener("click", () => {
    said.remove();
    connected().catch(() => {});
    retry();
  });
  said.append(`gdlab: the interactive view could not be loaded (${message}). `, again);
  return said;
}

export default {
  initialize({ model }: { model: Model }) {
    const study = String(model.get("study"));
    let end = () => {};
    let ended = false;
    connected = () =>
      core(model).then(({ connect }) => {
        if (ended) return;
        const host = connect(model);
        page().add(study, host);
        end = () => {
          page().remove(study, host);
          host.close();
        };
      });
    connected().catch(() => {}); // the view says so, and tries again
    return () => {
      ended = true;
      end();
    };
  },

  render({ model, el }: { model: Model; el: HTMLElement }) {
    const study = String(model.get("study"));
    let end = () => {};
    let ended = false;
    const draw = async () => {
      const loading = core(model);
      showStill(el, study).catch(() => {});
      const { mount } = await loading;
      if (ended) return;
      const view = mount(el, null, null);
      // A host that shows widgets alone (marimo) was given a picture beside it, for pages without a kernel.
      for (const each of document.querySelectorAll<HTMLElement>(`[data-gdlab-static="${study}"]`)) each.hidden = true;
      const stop = page().when(study, host => view.goLive(host));
      end = () => {
        stop();
        view.destroy();
      };
    };
    const start = () => void draw().catch(error => el.append(failure(error, start)));
    start();
    return () => {
      ended = true;
      end();
    };
  },
};
