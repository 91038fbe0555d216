// Unpack base64 of gzip into text, with the browser's own decompressor.

export async function gunzip(base64: string): Promise<string> {
  const bytes = Uint8Array.from(atob(base64), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
