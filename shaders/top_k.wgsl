// The places of the COUNT largest of LENGTH elements of a row, largest first: a NaN is larger than every number, and of equal
// elements the first comes first. A row is read twice for each place: for the largest of those that come behind the place
// found before, then for the first that equals it.
fn behind(x: f32, place: u32, last: f32, last_place: u32) -> bool {
    let later = place > last_place;
    if (is_nan(last)) {
        return later || !is_nan(x);
    }
    return !is_nan(x) && (x < last || (x == last && later));
}

fn unit(row: u32, part: u32, live: bool) {
    var last = 0.0;
    var last_place = 0u;
    for (var rank = 0u; rank < COUNT; rank++) {
        var highest = -infinity();
        for (var l = part; l < LENGTH; l += LANES) {
            let x = x_at(row * LENGTH + l);
            if (rank == 0u || behind(x, l, last, last_place)) {
                highest = max_nan(highest, x);
            }
        }
        highest = max_of_unit(highest);
        var before_end = 0.0;
        for (var l = part; l < LENGTH; l += LANES) {
            let x = x_at(row * LENGTH + l);
            if (select(x == highest, is_nan(x), is_nan(highest)) && (rank == 0u || behind(x, l, last, last_place))) {
                before_end = max(before_end, f32(LENGTH - l));
            }
        }
        last = highest;
        last_place = LENGTH - u32(max_of_unit(before_end));
        if (live && part == 0u) {
            store(row * COUNT + rank, last_place);
        }
    }
}
