// One element truncated toward 0 and held within u32; a NaN is 0. 4294967040 is the largest f32 below 2^32.
fn unit(i: u32) {
    let x = x_at(i);
    let inside = u32(clamp(select(x, 0.0, is_nan(x)), 0.0, 4294967040.0));
    store(i, select(inside, 0xffffffffu, x >= 4294967296.0 && !is_nan(x)));
}
