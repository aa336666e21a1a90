package access

import "kiln/oauth/smart"

// Policies are the policies in force.
type Policies struct{}

func (r *Rights) applyPolicies(a *answer, permission smart.Permissions, typ string) {}
