// Package server is the running service: its configuration, the parts it is made
// of, and their life from start to shutdown. New builds every part and so is the
// table of contents; each part is described in its own package.
package server
