// The first `count` new rows of a cache are written.
fn written() -> u32 {
    return min(count_at(0u), NEW / CACHES);
}
