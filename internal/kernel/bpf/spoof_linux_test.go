package bpf

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

// A reply that is not attributed to the Service proves that replies are not translated, also after the deadline.
func TestReplyFromAnotherAddress(t *testing.T) {
	backend, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = backend.Close() }()
	other, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	go func() {
		if _, client, err := backend.ReadFromUDP(make([]byte, 1)); err == nil {
			_, _ = other.WriteToUDP([]byte(greeting), client) // the client notices errors
		}
	}()
	err = exchange(backend.LocalAddr().(*net.UDPAddr).AddrPort())
	if want := "the reply seems to come from " + other.LocalAddr().String(); err == nil || err.Error() != want || !isProof(err) {
		t.Errorf("it returns %v, want %q", err, want)
	}
}

// Datagrams of other programs do not make the self-test fail. Here the client has one of 16 ports, and each of them receives garbage.
func TestTryIgnoresOtherDatagrams(t *testing.T) {
	o := selfTestOptions(t)
	var sender *net.UDPConn
	kerneltest.Do(t, o.NetNS, func() (err error) {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("40000 40015"), 0); err != nil {
			return err
		}
		sender, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 30000})
		return err
	})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			if _, err := sender.WriteToUDP([]byte("hello"), &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 40000 + i%16}); err != nil && errors.Is(err, net.ErrClosed) {
				return
			}
			if i%16 == 15 {
				time.Sleep(100 * time.Microsecond) // a guest with one processor has other work to do
			}
		}
	}()
	for range 5 {
		if err := Try(o); err != nil {
			t.Error(err)
		}
	}
	_ = sender.Close() // nothing is lost
	<-ended
}
