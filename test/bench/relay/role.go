//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
)

// Roles of further processes of this program: its first argument. The second one is JSON.
const (
	roleBackend = "role=backend"
	roleLoad    = "role=load"
)

// errNoRole means that the arguments name no role.
var errNoRole = errors.New("no role")

// runRole runs the role that the arguments name, until it is over.
func runRole(args []string) error {
	if len(args) != 2 {
		return errNoRole
	}
	switch args[0] {
	case roleBackend:
		var b backend
		if err := json.Unmarshal([]byte(args[1]), &b); err != nil {
			return err
		}
		return b.serve()
	case roleLoad:
		var l load
		if err := json.Unmarshal([]byte(args[1]), &l); err != nil {
			return err
		}
		return l.run(os.Stdin, os.Stdout)
	}
	return errNoRole
}

func roleCommand(role string, parameters any) (*exec.Cmd, error) {
	text, err := json.Marshal(parameters)
	if err != nil {
		return nil, err
	}
	return exec.Command("/proc/self/exe", role, string(text)), nil
}

// backend is the server behind the proxies: at one address it echoes, at the other one it writes without end.
type backend struct{ Echo, Source string }

// serve returns only if it cannot listen or accept.
func (b backend) serve() error {
	echo, err := net.Listen("tcp", b.Echo)
	if err != nil {
		return err
	}
	source, err := net.Listen("tcp", b.Source)
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- accept(echo, reply) }()
	go func() { failed <- accept(source, write) }()
	return <-failed
}

// reply echoes until the connection ends.
func reply(c net.Conn) {
	buffer := make([]byte, 4*requestSize)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return
		}
		if _, err := c.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// write writes until the connection ends.
func write(c net.Conn) {
	buffer := make([]byte, streamBuffer)
	for {
		if _, err := c.Write(buffer); err != nil {
			return
		}
	}
}

// accept calls handle for each connection, until the listener fails.
func accept(l net.Listener, handle func(net.Conn)) error {
	for {
		c, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		go func() {
			defer func() { _ = c.Close() }()
			handle(c)
		}()
	}
}

// exchange sends a request and waits for the reply. The buffer has the size of a request.
func exchange(c net.Conn, buffer []byte) error {
	if _, err := c.Write(buffer); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buffer)
	return err
}
