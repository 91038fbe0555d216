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

type Part = "gdlab" | "later";

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

/** Ask the kernel for the front end. Its second part comes right behind the first, and waits until a pane needs it. */
function ask(model: Model): Promise<CoreModule> {
  const send = () => model.send({ type: "core", req: REQ });
  const first = partFrom(model, "gdlab");
  let second: Promise<BlobPart> | null = partFrom(model, "later");
  second.catch(() => {});
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

export default {
  initialize({ model }: { model: Model }) {
    const study = String(model.get("study"));
    let end = () => {};
    let ended = false;
    core(model).then(
      ({ connect }) => {
        if (ended) return;
        const host = connect(model);
        page().add(study, host);
        end = () => {
          page().remove(study, host);
          host.close();
        };
      },
      () => {},
    );
    return () => {
      ended = true;
      end();
    };
  },

  async render({ model, el }: { model: Model; el: HTMLElement }) {
    try {
      const { mount } = await core(model);
      const view = mount(el, null, null);
      // A host that shows widgets alone (marimo) was given a picture beside it, for pages without a kernel.
      for (const each of document.querySelectorAll<HTMLElement>(`[data-gdlab-static="${model.get("study")}"]`))
        each.hidden = true;
      const stop = page().when(String(model.get("study")), host => view.goLive(host));
      return () => {
        stop();
        view.destroy();
      };
    } catch (error) {
      const { message } = error as Error;
      el.textContent =
        `gdlab: this host cannot load the interactive view (${message}); ` + "the saved output holds the picture.";
      return undefined;
    }
  },
};
