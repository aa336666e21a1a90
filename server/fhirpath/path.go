package fhirpath

import "strings"

// CanonicalPath is the text of a search expression's branch that the keys of index
// entries are made of (fhir.KeyOf): two branches with the same text read the same
// values. `x as T` and x.as(T) are x.ofType(T), names are not quoted, and a comparison
// in where() has no blanks.
func CanonicalPath(n Node) string {
	switch n := n.(type) {
	case *TypeOp:
		if n.Op == "as" {
			return CanonicalPath(n.X) + ".ofType(" + n.Type.String() + ")"
		}
	case *Indexer:
		return CanonicalPath(n.Left) + "[" + n.Index.String() + "]"
	case *Member:
		if n.Left != nil {
			return CanonicalPath(n.Left) + "." + n.Name
		}
	case *Call:
		if n.Left == nil {
			break
		}
		step := *n
		step.Left = nil
		text := step.String()
		switch comparison, ok := comparisonOf(n); {
		case ok:
			text = "where(" + comparison.Left.String() + "=" + comparison.Right.String() + ")"
		case n.Name == "as":
			step.Name = "ofType"
			text = step.String()
		}
		return CanonicalPath(n.Left) + "." + text
	}
	return n.String()
}

// CanonicalPathFrom is the canonical path of a branch as it concerns a resource type:
// it starts with the name of the type.
func CanonicalPathFrom(typ string, n Node) string {
	text := CanonicalPath(n)
	switch root := RootOf(n); root {
	case typ:
		return text
	case "Resource", "DomainResource":
		return typ + strings.TrimPrefix(text, root)
	}
	if strings.HasPrefix(text, "%") || strings.HasPrefix(text, "$") {
		return text
	}
	return typ + "." + text
}

// comparisonOf returns the `=` that where() consists of.
func comparisonOf(n *Call) (*Binary, bool) {
	if n.Name != "where" || len(n.Args) != 1 {
		return nil, false
	}
	b, ok := n.Args[0].(*Binary)
	return b, ok && b.Op == "="
}
