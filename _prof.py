from benchmarks.expert_iteration import *
import glob
J=Judged.joined([Judged.load(Path(p)) for p in sorted(glob.glob("/tmp/w/judged/round-*.npz"))])
n=len(J); k=round(n*.9)
st=learn(J)
is_c=np.arange(16)<J.count[:,None]
print("n",n,"median err",np.median(J.error_s[is_c&(np.arange(16)>0)]), "mean", J.mean_s[is_c].mean(), "pct", np.percentile(J.mean_s[is_c],[1,5,25,50,75,95,99]))
for lo,hi,name in ((0,k,"learned"),(k,n,"held out")):
    tot={}
    for i in range(lo,hi):
        c=J.count[i]; e=st.expected_s(J.features[i,:c]); b=int(e.argmin())
        for m in (0,.5,1,2,4):
            g=J.mean_s[i,b] if e[b]<-m else 0
            tot.setdefault(m,[]).append(g)
        z=J.mean_s[i,:c]; er=J.error_s[i,:c]; b=int(z.argmin())
        tot.setdefault("labelled best if 2 se",[]).append(z[b] if z[b]<-2*er[b] else 0)
    print(name,{str(m):(round(float(np.mean(v)),3), round(float(np.mean(np.array(v)!=0)),3)) for m,v in tot.items()})
