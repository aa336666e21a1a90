package notify

import (
	"testing"
	"time"
)

// The last ones of notifications.max_subscriptions are counted one by one, those before in
// less counts than a thousandth, and never more are let in than there is room for.
func TestRoomIsCountedSeldom(t *testing.T) {
	const most = 100_000
	var r room
	counts, alone := 0, 0
	for n := int64(0); n < most; n++ {
		if !r.takeRoom(most) {
			counts++
			if n >= most-roomPart {
				alone++
			}
			r.found(most, n)
			r.until = r.until.Add(time.Minute)
		}
		if n+r.left >= most {
			t.Fatalf("%d more of %d are let in where there are %d", r.left, most, n)
		}
	}
	if counts > most/400 {
		t.Errorf("%d were counted %d times", most, counts)
	}
	if alone < roomPart-1 {
		t.Errorf("of the last %d only %d were counted", roomPart, alone)
	}
	r.found(most, 0)
	if r.takeRoom(most / 2) {
		t.Error("a count for another limit was taken")
	}
	r.until = time.Now().Add(-time.Millisecond)
	if r.takeRoom(most) {
		t.Error("an old count was taken")
	}
}
