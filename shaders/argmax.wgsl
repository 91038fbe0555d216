// The index of the first largest of LENGTH elements that lie INNER apart; a NaN is larger than every number. They are
// read twice: for the largest, then for the first that equals it.
fn unit(u: u32, part: u32, live: bool) {
    let start = u / INNER * (LENGTH * INNER) + u % INNER;
    var highest = x_at(start);
    for (var l = part; l < LENGTH; l += LANES) {
        highest = max_nan(highest, x_at(start + l * INNER));
    }
    highest = max_of_unit(highest);
    var before_end = 0.0;
    for (var l = part; l < LENGTH; l += LANES) {
        let value = x_at(start + l * INNER);
        if (select(value == highest, is_nan(value), is_nan(highest))) {
            before_end = max(before_end, f32(LENGTH - l));
        }
    }
    let place = LENGTH - u32(max_of_unit(before_end));
    if (live && part == 0u) {
        store(u, place);
    }
}
