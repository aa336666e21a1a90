package ucum

import (
	"math/big"
	"strings"
	"sync"
)

// prefixes as powers of ten and, for the binary ones, of two.
var prefixes = map[string]*big.Rat{
	"Y": tenTo(24), "Z": tenTo(21), "E": tenTo(18), "P": tenTo(15), "T": tenTo(12), "G": tenTo(9), "M": tenTo(6), "k": tenTo(3),
	"h": tenTo(2), "da": tenTo(1), "d": tenTo(-1), "c": tenTo(-2), "m": tenTo(-3), "u": tenTo(-6), "n": tenTo(-9), "p": tenTo(-12),
	"f": tenTo(-15), "a": tenTo(-18), "z": tenTo(-21), "y": tenTo(-24),
	"Ki": big.NewRat(1<<10, 1), "Mi": big.NewRat(1<<20, 1), "Gi": big.NewRat(1<<30, 1), "Ti": big.NewRat(1<<40, 1),
}

func tenTo(n int64) *big.Rat {
	p := new(big.Int).Exp(big.NewInt(10), big.NewInt(max(n, -n)), nil)
	if n < 0 {
		return new(big.Rat).SetFrac(big.NewInt(1), p)
	}
	return new(big.Rat).SetInt(p)
}

// pi as UCUM gives it.
const pi = "3.1415926535897932384626433832795028841971693993751058209749445923"

// definitions are the units: code, value, unit it is measured in. A star marks a
// metric unit, one that takes prefixes. A unit measured in nothing is a base
// unit. Spec: UCUM §4.2 to §4.6.
const definitions = `
m* ; s* ; g* ; rad* ; K* ; C* ; cd*
10* 10 1 ; 10^ 10 1 ; [pi] ` + pi + ` 1 ; % 1 10*-2 ; [ppth] 1 10*-3 ; [ppm] 1 10*-6 ; [ppb] 1 10*-9 ; [pptr] 1 10*-12
mol* 6.0221367 10*23 ; sr* 1 rad2 ; Hz* 1 s-1 ; N* 1 kg.m/s2 ; Pa* 1 N/m2 ; J* 1 N.m ; W* 1 J/s ; A* 1 C/s ; V* 1 J/C ; F* 1 C/V
Ohm* 1 V/A ; S* 1 Ohm-1 ; Wb* 1 V.s ; T* 1 Wb/m2 ; H* 1 Wb/A ; lm* 1 cd.sr ; lx* 1 lm/m2 ; Bq* 1 s-1 ; Gy* 1 J/kg ; Sv* 1 J/kg
gon 0.9 deg ; deg 2 [pi].rad/360 ; ' 1 deg/60 ; '' 1 '/60 ; l* 1 dm3 ; L* 1 l ; ar* 100 m2 ; t* 1000 kg ; bar* 100000 Pa ; u* 1.6605402 10*-24.g
eV* 1.60217733 10*-19.J ; AU 149597.870691 Mm ; pc* 3.085678 10*16.m
min 60 s ; h 60 min ; d 24 h ; a_t 365.24219 d ; a_j 365.25 d ; a_g 365.2425 d ; a 1 a_j ; wk 7 d ; mo_s 29.53059 d ; mo_j 1 a_j/12 ; mo_g 1 a_g/12 ; mo 1 mo_j
[c]* 299792458 m/s ; [h]* 6.6260755 10*-34.J.s ; [k]* 1.380658 10*-23.J/K ; [e]* 1.60217733 10*-19.C ; [g]* 9.80665 m/s2 ; [G]* 6.67259 10*-11.m3.kg-1.s-2
[ly]* 1 [c].a_j ; gf* 1 g.[g] ; [lbf_av] 1 [lb_av].[g] ; Ky* 1 cm-1 ; Gal* 1 cm/s2 ; dyn* 1 g.cm/s2 ; erg* 1 dyn.cm ; P* 1 dyn.s/cm2 ; Bi* 10 A
St* 1 cm2/s ; Mx* 10 nWb ; G* 0.0001 T ; Oe* 250 /[pi].A/m ; Gb* 1 Oe.cm ; sb* 1 cd/cm2 ; Lmb* 1 cd/cm2/[pi] ; ph* 0.0001 lx ; Ci* 37000000000 Bq
R* 0.000258 C/kg ; RAD* 100 erg/g ; REM* 1 RAD
[in_i] 2.54 cm ; [ft_i] 12 [in_i] ; [yd_i] 3 [ft_i] ; [mi_i] 5280 [ft_i] ; [fth_i] 6 [ft_i] ; [nmi_i] 1852 m ; [kn_i] 1 [nmi_i]/h ; [mil_i] 0.001 [in_i] ; [hd_i] 4 [in_i]
[sin_i] 1 [in_i]2 ; [sft_i] 1 [ft_i]2 ; [syd_i] 1 [yd_i]2 ; [cin_i] 1 [in_i]3 ; [cft_i] 1 [ft_i]3 ; [cyd_i] 1 [yd_i]3 ; [cml_i] 1 [pi]/4.[mil_i]2
[ft_us] 1200 m/3937 ; [yd_us] 3 [ft_us] ; [in_us] 1 [ft_us]/12 ; [mi_us] 5280 [ft_us] ; [rd_us] 16.5 [ft_us] ; [acr_us] 160 [rd_us]2
[in_br] 2.539998 cm ; [ft_br] 12 [in_br] ; [yd_br] 3 [ft_br]
[gal_us] 231 [in_i]3 ; [bbl_us] 42 [gal_us] ; [qt_us] 1 [gal_us]/4 ; [pt_us] 1 [qt_us]/2 ; [gil_us] 1 [pt_us]/4 ; [foz_us] 1 [gil_us]/4 ; [fdr_us] 1 [foz_us]/8
[min_us] 1 [fdr_us]/60 ; [bu_us] 2150.42 [in_i]3 ; [tbs_us] 1 [foz_us]/2 ; [tsp_us] 1 [tbs_us]/3 ; [cup_us] 16 [tbs_us] ; [foz_m] 30 mL ; [cup_m] 240 mL ; [tsp_m] 5 mL ; [tbs_m] 15 mL
[gal_br] 4.54609 l ; [qt_br] 1 [gal_br]/4 ; [pt_br] 1 [qt_br]/2 ; [gil_br] 1 [pt_br]/4 ; [foz_br] 1 [gil_br]/5 ; [fdr_br] 1 [foz_br]/8 ; [min_br] 1 [fdr_br]/60
[gr] 64.79891 mg ; [lb_av] 7000 [gr] ; [oz_av] 1 [lb_av]/16 ; [dr_av] 1 [oz_av]/16 ; [ston_av] 20 [scwt_av] ; [scwt_av] 100 [lb_av] ; [lton_av] 20 [lcwt_av] ; [lcwt_av] 112 [lb_av] ; [stone_av] 14 [lb_av]
[pwt_tr] 24 [gr] ; [oz_tr] 20 [pwt_tr] ; [lb_tr] 12 [oz_tr] ; [sc_ap] 20 [gr] ; [dr_ap] 3 [sc_ap] ; [oz_ap] 8 [dr_ap] ; [lb_ap] 12 [oz_ap] ; [oz_m] 28 g
[degR] 5 K/9
cal_[15]* 4.1858 J ; cal_[20]* 4.1819 J ; cal_m* 4.19002 J ; cal_IT* 4.1868 J ; cal_th* 4.184 J ; cal* 1 cal_th ; [Cal] 1 kcal_th
[Btu_th] 1.05435 kJ ; [Btu_IT] 1.05505585262 kJ ; [Btu] 1 [Btu_th] ; [HP] 550 [ft_i].[lbf_av]/s ; tex* 1 g/km ; [den] 1 g/9/km
m[H2O]* 9.80665 kPa ; m[Hg]* 133.322 kPa ; [in_i'H2O] 1 m[H2O].[in_i]/m ; [in_i'Hg] 1 m[Hg].[in_i]/m ; [PRU] 1 mm[Hg].s/ml ; [wood'U] 1 mm[Hg].min/L
att* 1 kgf/cm2 ; atm 101325 Pa ; [psi] 1 [lbf_av]/[in_i]2 ; [diop] 1 /m ; [mesh_i] 1 /[in_i] ; [Ch] 1 mm/3 ; [drp] 1 ml/20 ; [MET] 3.5 mL/min/kg
kat* 1 mol/s ; U* 1 umol/min ; eq* 1 mol ; osm* 1 mol ; g%* 1 g/dl ; [S]* 1 10*-13.s ; [HPF] 1 1 ; [LPF] 100 1
circ 2 [pi].rad ; sph 4 [pi].sr ; [car_m] 0.2 g ; [car_Au] 1 /24 ; [smoot] 67 [in_i] ; st* 1 m3 ; Ao 0.1 nm ; b 100 fm2 ; mho* 1 S ; [degRe] 1.25 K
bit 1 1 ; By* 8 bit ; Bd* 1 /s ; [iU]* ; [IU]* 1 [iU] ; [arb'U] ; [USP'U] ; [GPL'U] ; [MPL'U] ; [APL'U] ; [beth'U] ; [anti'Xa'U] ; [todd'U] ; [dye'U] ; [smgy'U] ; [bdsk'U] ; [ka'U] ; [knk'U] ; [mclg'U] ; [tb'U]
[CCID_50] ; [TCID_50] ; [EID_50] ; [PFU] ; [FFU] ; [CFU] ; [IR] ; [BAU] ; [AU] ; [Amb'a'1'U] ; [PNU] ; [Lf] ; [D'ag'U] ; [FEU] ; [ELU] ; [EU] ; [hnsf'U] ; [p'diop] ; [MET'h]
[fth_us] 6 [ft_us] ; [ch_us] 4 [rd_us] ; [lk_us] 1 [ch_us]/100 ; [rch_us] 100 [ft_us] ; [rlk_us] 1 [rch_us]/100 ; [fur_us] 40 [rd_us] ; [mil_us] 0.001 [in_us]
[srd_us] 1 [rd_us]2 ; [smi_us] 1 [mi_us]2 ; [sct] 1 [mi_us]2 ; [twp] 36 [sct] ; [rd_br] 16.5 [ft_br] ; [ch_br] 4 [rd_br] ; [lk_br] 1 [ch_br]/100 ; [fth_br] 6 [ft_br]
[pc_br] 2.5 [ft_br] ; [mi_br] 5280 [ft_br] ; [nmi_br] 6080 [ft_br] ; [kn_br] 1 [nmi_br]/h ; [acr_br] 4840 [yd_br]2 ; [cr_i] 128 [cft_i] ; [bf_i] 144 [cin_i] ; [crd_us] 128 [cft_i]
[pk_us] 1 [bu_us]/4 ; [dqt_us] 1 [pk_us]/8 ; [dpt_us] 1 [dqt_us]/2 ; [gal_wi] 1 [bu_us]/8 ; [pk_br] 2 [gal_br] ; [bu_br] 4 [pk_br]
[lne] 1 [in_i]/12 ; [pnt] 1 [lne]/6 ; [pca] 12 [pnt] ; [pnt_pr] 0.013837 [in_i] ; [pca_pr] 12 [pnt_pr] ; [pied] 32.48 cm ; [pouce] 1 [pied]/12 ; [ligne] 1 [pouce]/12 ; [didot] 1 [ligne]/6 ; [cicero] 12 [didot]
[eps_0]* 8.854187817 10*-12.F/m ; [mu_0]* 4 [pi].10*-7.N/A2 ; [m_e]* 9.1093897 10*-28.g ; [m_p]* 1.6726231 10*-24.g ; [Btu_39] 1.05967 kJ ; [Btu_59] 1.0548 kJ ; [Btu_60] 1.05468 kJ
[kp_X] ; [kp_C] ; [kp_M] ; [kp_Q] ; B[10.nV]* ; %[slope]
pH ; [pH] 1 pH ; Np* ; B* ; B[SPL]* ; B[V]* ; B[mV]* ; B[uV]* ; B[W]* ; B[kW]* ; [hp'_X] ; [hp'_C] ; [hp'_M] ; [hp'_Q] ; [hp_X] ; [hp_C] ; bit_s ; [m/s2/Hz^0.5]* ; [NTU] ; [FNU]
`

type definition struct {
	value, unit string
	metric      bool
}

// table is definitions cut into its parts, once.
var table = sync.OnceValue(func() map[string]definition {
	t := map[string]definition{}
	for line := range strings.SplitSeq(strings.ReplaceAll(definitions, "\n", ";"), ";") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		d := definition{}
		if f[0] != "10*" {
			f[0], d.metric = strings.CutSuffix(f[0], "*")
		}
		if len(f) == 3 {
			d.value, d.unit = f[1], f[2]
		}
		t[f[0]] = d
	}
	return t
})

// lookup finds an atom, with a prefix where it takes one.
func lookup(atom string) (Unit, bool) {
	if d, ok := table()[atom]; ok {
		return define(atom, d)
	}
	switch atom {
	case "Cel":
		return Unit{factor: big.NewRat(1, 1), offset: big.NewRat(27315, 100), powers: []power{{"K", 1}}, dimension: "K"}, true
	case "[degF]":
		// K = (F + 459.67) × 5/9
		return Unit{factor: big.NewRat(5, 9), offset: big.NewRat(45967*5, 900), powers: []power{{"K", 1}}, dimension: "K"}, true
	}
	for n := 1; n <= 2 && n < len(atom); n++ {
		factor, ok := prefixes[atom[:n]]
		if !ok {
			continue
		}
		if d, ok := table()[atom[n:]]; ok && d.metric {
			u, ok := define(atom[n:], d)
			if !ok {
				return u, false
			}
			u.factor = new(big.Rat).Mul(u.factor, factor)
			return u, true
		}
	}
	return Unit{}, false
}

func define(atom string, d definition) (Unit, bool) {
	if d.unit == "" {
		return Unit{factor: big.NewRat(1, 1), powers: []power{{atom, 1}}, dimension: atom}, true
	}
	p := parser{code: d.unit}
	u, err := p.parse()
	if err != nil {
		return Unit{}, false
	}
	value, ok := new(big.Rat).SetString(d.value)
	if !ok {
		return Unit{}, false
	}
	u.factor = new(big.Rat).Mul(u.factor, value)
	return u, true
}
