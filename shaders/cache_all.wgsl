// Every new row of a cache is written.
fn written() -> u32 {
    return NEW / CACHES;
}
