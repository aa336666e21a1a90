package terminology

import "testing"

// TestForgetSeesAChange writes a value set between two questions: without Forget
// the change would be seen only after stampPause.
func TestForgetSeesAChange(t *testing.T) {
	t.Parallel()
	s, have := local(t, animals)
	const valueSet = "http://x/vs/later"
	if in, known := s.Contains(valueSet, "http://x/animals", "dog"); in || known {
		t.Fatalf("a value set that is not there: %v, %v", in, known)
	}
	have.put(t, `{"resourceType":"ValueSet","id":"later","url":"`+valueSet+`","compose":{"include":[{"system":"http://x/animals"}]}}`)
	s.Forget()
	if in, known := s.Contains(valueSet, "http://x/animals", "dog"); !in || !known {
		t.Errorf("after Forget: %v, %v", in, known)
	}
	if in, known := s.Contains(valueSet, "http://x/animals", "table"); in || !known {
		t.Errorf("a code that is not in it: %v, %v", in, known)
	}
}
