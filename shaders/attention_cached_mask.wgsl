// Every query sees the keys 0 .. pos of its cache.
fn cache_begin(query: u32) -> u32 {
    return query / BLOCK * (KEYS / CACHES);
}

fn first_key(query: u32) -> u32 {
    return cache_begin(query);
}

fn end_key(query: u32) -> u32 {
    let pos = pos_at(query / BLOCK);
    return cache_begin(query) + min(pos, KEYS / CACHES - 1u) + 1u;
}

fn stands(query: u32) -> bool {
    return true;
}
