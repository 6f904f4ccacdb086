//go:build linux

package main

import (
	"net/netip"
	"time"

	"github.com/sluice-proxy/sluice/test/lab"
)

// reload has NodePorts answer at a second address of the node, by a change of
// the configuration file.
func (t *tour) reload() error {
	t.head("Reload: nodePortAddresses in the configuration, changed as a ConfigMap changes")
	second := path{from: t.Outside, who: "outside", kind: "NodePort", to: netip.MustParseAddrPort("192.168.1.2:30080")}
	r := second.request()
	if r.Outcome != lab.Refused && r.Outcome != lab.Reset {
		t.fail("%s: %s, want a refusal", second.to, r)
		return nil
	}
	t.say("%srefused: the node's second address serves none", second)
	flow := startTraffic(t.webWays())
	moment()
	now, err := t.settings.swap([]string{"192.168.0.0/16", "2001:db8::/64"})
	if err != nil {
		flow.stop()
		return err
	}
	r = t.until(second, func(r lab.Result) bool { return r.Outcome == lab.Answered })
	took := time.Since(now)
	moment()
	made := flow.stop()
	if r.Outcome != lab.Answered {
		t.fail("%s: %s", second, r)
		return nil
	}
	t.pass("It answers %s after the file was changed, without a restart.", millis(took))
	t.learn("Reload", "%s from the new configuration to the first answer", millis(took))
	t.losses("", made)
	return nil
}
