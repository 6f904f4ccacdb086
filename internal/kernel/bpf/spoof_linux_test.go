package bpf

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/internal/kernel/kerneltest"
)

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
