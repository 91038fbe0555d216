/** The release of this page code; a test holds it equal to package.json. */
export const VERSION = "0.1.0";

export const MIME = "application/vnd.gdlab.graph.v1+json";
