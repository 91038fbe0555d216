// The few shapes of JupyterLab, Lumino and Node that are used; the real type packages weigh 332 MB.

declare module "*.css" {
  const text: string;
  export default text;
}

/** The layouts as a function whose text is a worker's program (build.mjs). */
declare module "layout-engine" {
  export function engine(): typeof import("./layout/engines.ts");
}

declare module "@lumino/widgets" {
  export class Widget {
    constructor(options?: { node?: HTMLElement });
    readonly node: HTMLElement;
    readonly isDisposed: boolean;
    addClass(name: string): void;
    dispose(): void;
  }
}

declare module "@jupyterlab/rendermime" {
  import type { Widget } from "@lumino/widgets";
  export interface MimeModel {
    readonly trusted: boolean;
    readonly data: Record<string, unknown>;
    readonly metadata: Record<string, unknown>;
  }
  export interface Renderer extends Widget {
    renderModel(model: MimeModel): Promise<void>;
  }
  export interface RendererFactory {
    readonly safe: boolean;
    readonly mimeTypes: readonly string[];
    createRenderer(options: { mimeType: string }): Renderer;
  }
  export interface IRenderMimeRegistry {
    addFactory(factory: RendererFactory, rank?: number): void;
  }
  export const IRenderMimeRegistry: unique symbol;
}

declare module "@jupyterlab/docregistry" {
  import type { IRenderMimeRegistry } from "@jupyterlab/rendermime";
  export interface MimeDocumentOptions {
    name: string;
    label?: string;
    primaryFileType: FileType | undefined;
    fileTypes: readonly string[];
    defaultFor: readonly string[];
    readOnly?: boolean;
    dataType?: "string" | "json";
    modelName: string;
    rendermime: IRenderMimeRegistry;
    renderTimeout?: number;
  }
  export interface FileType {
    readonly name: string;
  }
  export class MimeDocumentFactory {
    constructor(options: MimeDocumentOptions);
  }
}

declare module "@jupyterlab/application" {
  import type { FileType, MimeDocumentFactory } from "@jupyterlab/docregistry";
  export interface JupyterFrontEnd {
    readonly docRegistry: {
      addFileType(type: {
        name: string;
        displayName: string;
        extensions: readonly string[];
        mimeTypes: readonly string[];
        contentType: "file";
        fileFormat: "text";
      }): void;
      getFileType(name: string): FileType | undefined;
      addWidgetFactory(factory: MimeDocumentFactory): void;
    };
  }
  export interface JupyterFrontEndPlugin {
    id: string;
    description: string;
    autoStart: boolean;
    requires: readonly unknown[];
    activate(app: JupyterFrontEnd, ...services: never[]): void;
  }
}

declare module "node:test" {
  export function test(name: string, body: () => void | Promise<void>): void;
}

declare module "node:assert/strict" {
  const assert: {
    (value: unknown, message?: string): void;
    equal(actual: unknown, expected: unknown, message?: string): void;
    deepEqual(actual: unknown, expected: unknown, message?: string): void;
    match(text: string, pattern: RegExp): void;
    throws(body: () => unknown, expected?: RegExp): void;
    rejects(body: Promise<unknown>, expected?: RegExp): Promise<void>;
    ok(value: unknown, message?: string): void;
  };
  export default assert;
}

declare module "node:fs" {
  export function readFileSync(path: string | URL, encoding: "utf8"): string;
}
declare module "node:zlib" {
  export function gzipSync(text: string): { toString(encoding: "base64"): string };
}
declare module "node:process" {
  export function cwd(): string;
}
