package main

import (
	"log/slog"
	"net"
	"os"
)

// notifySystemd tells systemd the state of this process, such as READY=1, where systemd has
// started it with Type=notify. Spec: sd_notify(3).
func notifySystemd(state string, log *slog.Logger) {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return
	}
	if address[0] == '@' { // an abstract socket
		address = "\x00" + address[1:]
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err == nil {
		defer conn.Close()
		_, err = conn.Write([]byte(state))
	}
	if err != nil {
		log.Warn("tell systemd the state", slog.String("state", state), slog.Any("error", err))
	}
}
