package admission

import "testing"

// Of several searches that need a value one search computes it. The others wait for its end.
func TestBeginComputation(t *testing.T) {
	a := New(8)
	one, other := Key{1}, Key{2}
	end, _ := a.BeginComputation(one)
	if end == nil {
		t.Fatal("the first search does not compute the value")
	}
	second, ended := a.BeginComputation(one)
	if second != nil {
		t.Fatal("two searches compute one value")
	}
	if endOther, _ := a.BeginComputation(other); endOther == nil {
		t.Fatal("another value has to wait")
	}
	select {
	case <-ended:
		t.Fatal("the computation has ended before its end")
	default:
	}
	end()
	<-ended
	if again, _ := a.BeginComputation(one); again == nil {
		t.Error("the value cannot be computed a second time")
	}
}
