// Query i of a cache stands at position pos + i and sees the keys up to there, with WINDOW the last WINDOW of them;
// queries from `valid` on have no position.
fn cache_begin(query: u32) -> u32 {
    return query / BLOCK * (KEYS / CACHES);
}

fn first_key(query: u32) -> u32 {
    let seen = end_key(query) - cache_begin(query);
    return cache_begin(query) + select(0u, seen - min(seen, WINDOW), WINDOW > 0u);
}

fn end_key(query: u32) -> u32 {
    let last = KEYS / CACHES - 1u;
    let pos = pos_at(query / BLOCK);
    return cache_begin(query) + min(min(pos, last) + query % BLOCK, last) + 1u;
}

fn stands(query: u32) -> bool {
    return query % BLOCK < valid_at(0u);
}
