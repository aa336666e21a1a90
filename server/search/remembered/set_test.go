package remembered

import (
	"testing"

	"github.com/RoaringBitmap/roaring/v2"
)

// What a set is said to take is about what its containers do, with few members in each, with many, and
// with long stretches of them.
func TestBitmapBytes(t *testing.T) {
	t.Parallel()
	every := func(step, n uint32) *roaring.Bitmap {
		b := roaring.New()
		for i := range n {
			b.Add(i * step)
		}
		b.RunOptimize()
		return b
	}
	stretches := roaring.New()
	for i := range uint64(40) {
		stretches.AddRange(i*100_000, i*100_000+60_000)
	}
	stretches.RunOptimize()
	for name, b := range map[string]*roaring.Bitmap{
		"one": every(1, 1), "one in each container": every(1<<16, 300), "a few": every(9_000, 300), "some": every(700, 20_000),
		"many": every(2, 1_000_000), "all": every(1, 1_000_000), "stretches": stretches,
	} {
		takes := int64(b.GetSizeInBytes() + b.Stats().Containers*containerBytes)
		if got := bitmapBytes(b); got < takes*9/10-containerBytes || got > takes*12/10+containerBytes {
			t.Errorf("%s: %d bytes, want about %d", name, got, takes)
		}
	}
	if got := bitmapBytes(roaring.New()); got != 0 {
		t.Errorf("an empty one takes %d bytes", got)
	}
}
