package conformance

import (
	"fmt"
	"testing"
)

// search.html#sort: every type of parameter but composite and special has an order.
func TestSort(t *testing.T) {
	s := start(t)
	for i, gender := range []string{"male", "", "female", "other", "female"} {
		body := fmt.Sprintf(`{"resourceType":"Patient","id":"p%d","managingOrganization":{"reference":"Organization/o%d"},"maritalStatus":{"coding":[{"code":"%c"}]}`, i, i%2, 'Z'-i)
		if gender != "" {
			body += `,"gender":"` + gender + `"`
		}
		s.put(fmt.Sprintf("/Patient/p%d", i), body+"}", "X-Skip-Validation", "true").want(201)
	}
	sorted := func(t *testing.T, by, want string) {
		t.Helper()
		if got := fmt.Sprint(s.in(t).get("/Patient?_sort=" + by).want(200).ids()); got != want {
			t.Errorf("_sort=%s gives %s, want %s", by, got, want)
		}
	}
	t.Run("by a token, missing values last in both directions", func(t *testing.T) {
		sorted(t, "gender,-_id", "[p4 p2 p0 p3 p1]")
		sorted(t, "-gender,_id", "[p3 p0 p2 p4 p1]")
	})
	t.Run("by a reference, then by a token", func(t *testing.T) {
		sorted(t, "organization,gender,_id", "[p2 p4 p0 p3 p1]")
	})
	t.Run("by a parameter that arrived at run time", func(t *testing.T) {
		s.in(t).put("/SearchParameter/marital", parameter("marital", "marital", "token", "Patient", "Patient.maritalStatus")).want(201)
		s.in(t).indexed("/Patient?marital=z")
		sorted(t, "marital", "[p4 p3 p2 p1 p0]")
	})
	t.Run("what has no order is refused by name", func(t *testing.T) {
		s := s.in(t)
		s.get("/Observation?_sort=code-value-quantity").issue(400, "invalid", "_sort", "code-value-quantity", "composite")
		s.get("/Patient?_sort=gendr").issue(400, "not-supported", "gendr", "gender")
	})
}
