package policy

import (
	"k8s.io/utils/cpuset"

	"github.com/tideline-io/tideline/api/v1alpha1"
	"github.com/tideline-io/tideline/internal/units"
)

// LSPool is the CPUs of LS containers: what is online and not reserved.
func (p *Policy) LSPool(n Node) cpuset.CPUSet {
	online := units.CPUMaskOf(n.Online)
	pool := p.lsPool(&online)
	return pool.Set()
}

// BEPool is the CPUs of BE containers: what is online and not reserved.
func (p *Policy) BEPool(n Node) cpuset.CPUSet {
	online := units.CPUMaskOf(n.Online)
	pool := p.bePool(&online)
	return pool.Set()
}

func (p *Policy) lsPool(online *units.CPUMask) units.CPUMask {
	pool := *online
	pool.Remove(&p.reserved)
	return pool
}

func (p *Policy) bePool(online *units.CPUMask) units.CPUMask {
	pool := *online
	pool.Remove(&p.reserved)
	return pool
}

// pool is the pool of a shared tier; the bool is false for a tier that has none.
func (p *Policy) pool(t v1alpha1.Tier, online *units.CPUMask) (units.CPUMask, bool) {
	switch t {
	case v1alpha1.LS:
		return p.lsPool(online), true
	case v1alpha1.BE:
		return p.bePool(online), true
	}
	return units.CPUMask{}, false
}
