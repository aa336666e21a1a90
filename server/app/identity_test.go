package app

import (
	"slices"
	"testing"

	"kiln/gen/r4"
)

// A subscription keeps its number by its name or its content, wherever it is in the App.
func TestIdentify(t *testing.T) {
	sub := func(name, typ, code string) r4.AppSubscriptions {
		s := r4.AppSubscriptions{Handler: &r4.AppSubscriptionsHandler{}}
		s.Name.Text, s.ResourceType.Text, s.Handler.Type_.Text, s.Handler.Code.Text = name, typ, "javascript", code
		return s
	}
	a, b, n := sub("", "Patient", "a"), sub("", "Patient", "b"), sub("n", "Patient", "c")
	other := sub("n", "Observation", "d")
	var known []identity
	for _, c := range []struct {
		name string
		list []r4.AppSubscriptions
		want []int
	}{
		{"a new App", []r4.AppSubscriptions{a, b, n}, []int{0, 1, 2}},
		{"another order", []r4.AppSubscriptions{n, b, a}, []int{2, 1, 0}},
		{"one is gone", []r4.AppSubscriptions{b, a}, []int{1, 0}},
		{"a changed one with its name", []r4.AppSubscriptions{other, a}, []int{2, 0}},
		{"a changed one without a name", []r4.AppSubscriptions{sub("", "Patient", "z"), a}, []int{3, 0}},
		{"one that was there before", []r4.AppSubscriptions{b}, []int{1}},
		{"two alike", []r4.AppSubscriptions{b, b}, []int{1, 4}},
		{"a name for one that had none", []r4.AppSubscriptions{sub("now", "Patient", "b")}, []int{1}},
		{"another name is another one", []r4.AppSubscriptions{sub("later", "Patient", "b")}, []int{4}},
		{"none", nil, []int{}},
		{"never a number again", []r4.AppSubscriptions{sub("", "Group", "x")}, []int{5}},
	} {
		var got []int
		got, known = identifySubscriptions(known, c.list)
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
