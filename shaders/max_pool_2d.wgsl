// The largest pixel of a window; those beyond the image do not count. A NaN is the largest.
fn unit(u: u32) {
    let image = u / (OH * OW) * (H * W);
    let top = u / OW % OH * SH;
    let start = u % OW * SW;
    var best = x_at(image + (max(top, PH) - PH) * W + max(start, PW) - PW);
    for (var y = max(top, PH); y < min(top + KH, H + PH); y++) {
        for (var x = max(start, PW); x < min(start + KW, W + PW); x++) {
            best = max_nan(best, x_at(image + (y - PH) * W + x - PW));
        }
    }
    store(u, best);
}
