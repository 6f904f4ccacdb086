package probe

import (
	"errors"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/kernel/iptables"
)

// A kernel without the match of transparent sockets is detected before a rule is written, if the match is needed.
func TestTransparentNeedsMatchSocket(t *testing.T) {
	without := func(_ xtFamily, all []extension) error {
		for _, e := range all {
			if strings.Contains(e.rule, "-m socket") {
				return &iptables.RestoreError{Program: "iptables-restore", Reason: "no such match"}
			}
		}
		return nil
	}
	_, err := needs{Options{Transparent: true}.extensions(iptables.NFT), without}.check(xtFamilies()[0])
	if err == nil || !strings.Contains(err.Error(), "xt_socket") || !errors.Is(err, ErrFeature) {
		t.Errorf("the error is %v", err)
	}
	if _, err := (needs{Options{}.extensions(iptables.NFT), without}).check(xtFamilies()[0]); err != nil {
		t.Errorf("not needed: %v", err)
	}
}
