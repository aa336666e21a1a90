// Package server is the running service: its configuration, the parts it is made
// of, and their life from start to shutdown. New builds every part and so is the
// table of contents; what a part does is told in its own package.
package server
