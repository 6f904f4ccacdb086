package handover

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "end")
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		ends[i] = c.(*net.UnixConn)
		t.Cleanup(func() { _ = c.Close() })
	}
	return ends
}

// filled returns a Handover with n descriptors, from each of which its index can be read.
func filled(t *testing.T, n int) *Handover {
	t.Helper()
	h := &Handover{Files: map[string]*os.File{}}
	for i := range n {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, []byte(fmt.Sprint(i)), 0); err != nil {
			t.Fatal(err)
		}
		h.Descriptors = append(h.Descriptors, fd)
	}
	if err := h.Put("text", "value"); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	h.Files["null"] = f
	t.Cleanup(h.Close)
	return h
}

func contents(t *testing.T, fd int) string {
	t.Helper()
	b := make([]byte, 16)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// All descriptors arrive, with other numbers, and none is inherited by a child.
func TestSend(t *testing.T) {
	for _, n := range []int{0, 1, batch - 1, batch, 5*batch + 7} {
		ends := pair(t)
		h := filled(t, n)
		old := slices.Clone(h.Descriptors)
		h.To = ends[0]
		sent := make(chan error, 1)
		go func() { sent <- h.Send() }()
		got, err := Accept(ends[1])
		if err := errors.Join(err, <-sent); err != nil {
			t.Fatalf("%d descriptors: %v", n, err)
		}
		var text string
		if err := got.Get("text", &text); err != nil || text != "value" || got.Files["null"] == nil || len(got.Descriptors) != n {
			t.Errorf("received %q, files %v, %d descriptors, %v; want %d", text, got.Files, len(got.Descriptors), err, n)
		}
		for i, fd := range old {
			if s := contents(t, got.Numbers[fd]); s != fmt.Sprint(i) {
				t.Errorf("descriptor %d has %q", i, s)
			}
		}
		for _, fd := range got.Descriptors {
			if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("a child inherits descriptor %d, %v", fd, err)
			}
		}
		got.Close()
	}
}

// The sender keeps everything if the receiver ends, whenever that is.
func TestSendToAProcessThatEnds(t *testing.T) {
	for name, receiver := range map[string]func(c *net.UnixConn){
		"at once":             func(*net.UnixConn) {},
		"after the size":      func(c *net.UnixConn) { _, _ = io.ReadFull(c, make([]byte, 8)) },
		"after a message":     func(c *net.UnixConn) { readText(c); _, _ = receiveBatch(c); _, _ = c.Write([]byte{ready}) },
		"with another answer": func(c *net.UnixConn) { readText(c); _, _ = receiveBatch(c); _, _ = c.Write([]byte{commit}) },
	} {
		ends := pair(t)
		h := filled(t, 2*batch)
		h.To = ends[0]
		go func() {
			receiver(ends[1])
			_ = ends[1].Close()
		}()
		if err := h.Send(); err == nil {
			t.Errorf("a receiver that ends %s is no error", name)
		}
		for i, fd := range h.Descriptors {
			if s := contents(t, fd); s != fmt.Sprint(i) {
				t.Fatalf("a receiver that ends %s: descriptor %d has %q", name, i, s)
			}
		}
	}
}

func readText(c io.Reader) {
	var size [8]byte
	_, _ = io.ReadFull(c, size[:])
	_, _ = io.CopyN(io.Discard, c, int64(binary.BigEndian.Uint64(size[:])))
}

// A receiver does not go on without the word of the sender, and closes what it has.
func TestAcceptFromAProcessThatEnds(t *testing.T) {
	for _, part := range []int{0, 4, 8, 20} {
		ends := pair(t)
		text, err := json.Marshal(parcel{Format: format})
		if err != nil {
			t.Fatal(err)
		}
		all := append(binary.BigEndian.AppendUint64(nil, uint64(len(text))), text...)
		if part == 20 {
			part = len(all)
		}
		_, _ = ends[0].Write(all[:part])
		_ = ends[0].Close()
		if h, err := Accept(ends[1]); err == nil {
			t.Errorf("%d bytes are a Handover: %+v", part, h)
		}
	}
}

// Of another version only the files are adopted.
func TestAnotherFormat(t *testing.T) {
	ends := pair(t)
	h := filled(t, 3)
	p := parcel{Format: format + 1, Files: []string{"null"}, Values: h.Values, Descriptors: h.Descriptors}
	null, err := number(h.Files["null"])
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error, 1)
	go func() { sent <- p.send(ends[0], append([]int{null}, h.Descriptors...)) }()
	got, err := Accept(ends[1])
	if !errors.Is(err, ErrFormat) || got == nil || got.Files["null"] == nil || got.Values != nil || got.Descriptors != nil {
		t.Errorf("received %+v, %v", got, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	got.Close()
}

// A descriptor that is not open is left out and reported.
func TestADescriptorThatIsNotOpen(t *testing.T) {
	h := filled(t, 2)
	fds := slices.Clone(h.Descriptors)
	h.Descriptors = append(h.Descriptors, 1<<30)
	if err := h.Finish(); err == nil || !slices.Equal(h.Descriptors, fds) {
		t.Errorf("%v, %v remain", err, h.Descriptors)
	}
}

// Connections that another version has handed over are reset: an orderly end would look like that of their data.
func TestOtherFormatResets(t *testing.T) {
	ends := pair(t)
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	c, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // it is closed with the test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f, err := served.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	_ = served.Close() // f is another descriptor of it
	p := parcel{Format: format + 1, Descriptors: []int{int(f.Fd())}}
	sent := make(chan error, 1)
	go func() {
		err := p.send(ends[0], p.Descriptors)
		sent <- errors.Join(err, f.Close())
	}()
	if _, err := Accept(ends[1]); !errors.Is(err, ErrFormat) {
		t.Errorf("got %v, want ErrFormat", err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("the peer got %v, want a reset", err)
	}
}
