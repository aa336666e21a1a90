package server

import "kiln/server/admin"

// caches are what this server remembers only to be faster.
func (s *Server) caches() []admin.Cache {
	return []admin.Cache{}
}
